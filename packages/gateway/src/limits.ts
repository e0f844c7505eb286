/** Limits and waits inside the gateway; limits that callers can meet are in @cloche/protocol. */
export const gatewayLimits = {
  /** Deadlines of calls to a host, by how long the slowest machine may take. */
  hostCreateMs: 180_000,
  hostForkMs: 300_000,
  hostSuspendMs: 600_000,
  hostResumeMs: 300_000,
  hostImportMs: 600_000,
  hostDestroyMs: 120_000,
  hostCheckpointMs: 60_000,
  hostQueryMs: 15_000,
  /** How long a host may take to answer before a fork begins there. */
  hostAnswerMs: 3_000,
  /** How many machines of a group (sandboxes that are made together) are made at once. */
  groupForksAtOnce: 8,
  /** Attempts of a call that fails for a passing reason, before the operation turns back. */
  hostAttempts: 4,
  hostRetryMs: 100,
  /** An operation whose outcome is unknown is tried again; the wait doubles from the first value to the second. */
  operationRetryMs: 250,
  operationRetryMaxMs: 30_000,
  /** Attempts of a compare-and-set, each with a fresh read, when the record keeps changing. */
  changeAttempts: 20,
  /** Sandboxes that are compared with their machines at once, or rescued from lost hosts. */
  reconcileConcurrency: 8,
  reconcileEveryMs: 60_000,
  watchRetryMs: 100,
  watchRetryMaxMs: 5_000,
  /** Expired sandboxes that are ended in one round; expiries are looked for at least this often. */
  expiryBatch: 100,
  expiryCheckMs: 60_000,
  idempotencySweepMs: 3_600_000,
  /** Removals of sandboxes are noted this long. A machine that is found later is kept for an operator. */
  removedKeepMs: 30 * 24 * 3_600_000,
  /** Automatic checkpoints: how often due ones are looked for, how many are read, how many are taken at once, and when
   *  one is tried again that failed or whose gateway is gone. */
  checkpointPollMs: 15_000,
  checkpointBatch: 100,
  checkpointsAtOnce: 4,
  checkpointRetryMs: 120_000,
  /** An answer waits this long for the edges to have taken a new route. */
  routeDeliveryMs: 250,
  wakeMs: 120_000,
  portLinkSeconds: 60,
  apiKeyTouchMs: 60_000,
  auditKeepMs: 90 * 24 * 3_600_000,
  /** Entries kept of each team: no team pushes out entries of another. */
  auditKeepOfTeam: 100_000,
  auditPruneMs: 3_600_000,
  /** Intervals of compute time are kept this long after their end. */
  usageKeepMs: 400 * 24 * 3_600_000,
  usagePruneMs: 3_600_000,
  hostInfoCacheMs: 30_000,
  closeMs: 5_000,
  /**
   * A host's lease, by the database's clock, from its last renewal: when it is renewed (the host is told so), runs out, and the host
   * is lost.
   */
  hostRenewMs: 5_000,
  hostLeaseMs: 15_000,
  hostLostMs: 20_000,
  /** In a cluster the rows of all hosts are read this often. */
  hostPollMs: 2_000,
  /** Sandboxes of lost hosts: how often they are looked for, and how many at once. */
  lostHostPollMs: 2_000,
  lostHostBatch: 100,
  /** Moves off a draining host: how often they are looked for, how many are read, how many run at once for each host,
   *  and how long an image may take to be stored before its sandbox is resumed where it is. */
  drainPollMs: 1_000,
  drainBatch: 100,
  drainAtOnce: 4,
  drainStoreMs: 600_000,
  /** Requests that run when a move begins have this long to end. */
  drainGraceMs: 300,
  /** A move that failed is tried again; the wait doubles from the first value to the second. */
  drainRetryMs: 10_000,
  drainRetryMaxMs: 600_000,
  /**
   * A gateway's watch of a host: its lease by the database's clock; renewed and given up by the gateway's own clock.
   */
  hostWatchMs: 15_000,
  hostWatchRenewMs: 5_000,
  hostWatchHoldMs: 10_000,
  /** Watches taken in one statement; and hosts connected to in one turn of the event loop. */
  hostWatchesAtOnce: 50,
  hostsConnectedAtOnce: 3,
  /** Audit events of hosts watched by others: remembered for longer than a watch takes to change hands; how many. */
  reportedEventsMs: 30_000,
  reportedEventsMax: 1_000,
  /** Whole hosts that are compared at once. */
  hostsComparedAtOnce: 8,
  /** Placement: hosts tried, hosts compared by each strategy, and how full `packed` makes a host while others fit. */
  placementTries: 3,
  placementSpreadOf: 2,
  placementPackedOf: 8,
  placementPackedShare: 0.85,
  /** Room in the hosts that are packed, as a share of all memory: enough for bursts while the rows are old. */
  placementPackedRoom: 0.15,
  /** Retry-After when no host can take a machine now. */
  noHostRetrySeconds: 5,
  /** The longest that a host may be away on purpose without being declared lost. */
  hostAwayMaxMs: 900_000,
  /** A gateway's lease, where several share a database: how often it is renewed, and how long it holds. */
  gatewayRenewMs: 5_000,
  gatewayLeaseMs: 15_000,
  /** How long an object in storage is held before it is named; a template, between the starts of two hosts. A sweep
   *  skips packs as young as those of a held object. */
  storageHoldMs: 24 * 3_600_000,
  templateHoldMs: 30 * 24 * 3_600_000,
  /** Objects of deleted checkpoints and of images that are no longer needed are removed only after this time: readers can end. */
  storageGarbageMs: 3_600_000,
  /**
   * The sweep: the lease of the host that sweeps, keys that it gets at once, and how often it lists the whole store.
   */
  sweepLeaseMs: 600_000,
  sweepBatch: 1_000,
  sweepListMs: 24 * 3_600_000,
  /** An operation's lease, where several gateways share a database: its length, how often it is renewed and expired
   *  leases are taken over, and when an operation is dropped whose lease could not be renewed. */
  operationLeaseMs: 10_000,
  operationPollMs: 2_500,
  operationHoldMs: 7_500,
  /** Changes by other gateways: how often they are looked for without a notification, and how many at once. */
  changePollMs: 1_000,
  changePage: 1_000,
  /** Records of one page, when all are read. */
  recordsPage: 200,
  /** How long changes are kept, and how often older ones are dropped. */
  changeKeepMs: 3_600_000,
  changePruneMs: 60_000,
  /** How long a missing sequence number is asked for; at a start, gaps among so many of the newest count as missing. */
  changeMissingMs: 60_000,
  changeOverlap: 1_000,
  /** A page so short that it needs no turn (http/read-turns.ts). */
  shortPage: 10,
  /** Calls of health, which need no API key: streams open at once, in all and from one address; bytes of a message. */
  openStreams: 100,
  openStreamsOfAddress: 50,
  openMessageBytes: 16_384,
  /** How often a watch of health looks. */
  healthWatchMs: 2_000,
} as const;
