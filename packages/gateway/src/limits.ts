/** Limits and waits inside the gateway; those a caller can meet are in @cloche/protocol. */
export const gatewayLimits = {
  /** Calls to the host, by how long the slowest machine may take. */
  hostCreateMs: 180_000,
  hostForkMs: 300_000,
  hostSuspendMs: 600_000,
  hostResumeMs: 300_000,
  hostImportMs: 600_000,
  hostDestroyMs: 120_000,
  hostCheckpointMs: 60_000,
  hostQueryMs: 15_000,
  /** A call that fails for a passing reason is tried this often before the operation turns back. */
  /** Of sandboxes that are made together: so many machines under way at once. */
  groupForksAtOnce: 8,
  hostAttempts: 4,
  hostRetryMs: 100,
  /** An operation that could go neither forward nor back is tried again, with waits that double up to the second. */
  operationRetryMs: 250,
  operationRetryMaxMs: 30_000,
  /** How often an interrupted compare-and-set is read and decided again. */
  changeAttempts: 20,
  /** Machines brought back side by side after a start. */
  reconcileConcurrency: 8,
  reconcileEveryMs: 60_000,
  watchRetryMs: 100,
  watchRetryMaxMs: 5_000,
  /** Sandboxes whose time is up, deleted in one round; the clock is looked at least this often. */
  expiryBatch: 100,
  expiryCheckMs: 60_000,
  idempotencySweepMs: 3_600_000,
  /** Checkpoints that the service takes: those due are looked for this often, so many are read and taken at once; one that did not
   *  come about, or whose gateway is gone, is tried again so much later. */
  checkpointLookMs: 15_000,
  checkpointBatch: 100,
  checkpointsAtOnce: 4,
  checkpointRetryMs: 120_000,
  /** An answer waits this long for the edges to have taken a new route. */
  routeDeliveryMs: 250,
  wakeMs: 120_000,
  portLinkSeconds: 60,
  apiKeyTouchMs: 60_000,
  auditKeepMs: 90 * 24 * 3_600_000,
  /** Each team has its own: none pushes another's entries out. */
  auditKeepOfTeam: 100_000,
  auditPruneMs: 3_600_000,
  /** Intervals of compute time are kept this long after their end. */
  usageKeepMs: 400 * 24 * 3_600_000,
  usagePruneMs: 3_600_000,
  hostInfoCacheMs: 30_000,
  closeMs: 5_000,
  /** A host's lease, by the database's clock: renewed, run out, and the host taken for lost, all from its last renewal. */
  hostRenewMs: 5_000,
  hostLeaseMs: 15_000,
  hostLostMs: 20_000,
  /** In a cluster the rows of all hosts are read this often. */
  hostLookMs: 2_000,
  /** Sandboxes of a lost host: looked for so often, so many at once. */
  lostHostLookMs: 2_000,
  lostHostBatch: 100,
  /** Moves off a host that drains: looked at so often, so many at once of each host, and tried again after waits that double. One whose
   *  image is not in storage by then goes on where it is. */
  drainLookMs: 1_000,
  drainBatch: 100,
  drainAtOnce: 4,
  drainStoreMs: 600_000,
  /** What is being answered when a move begins gets so long. */
  drainGraceMs: 300,
  drainRetryMs: 10_000,
  drainRetryMaxMs: 600_000,
  /** A gateway's watch of a host, by the database's clock; renewed, and let go of, by its own. */
  hostWatchMs: 15_000,
  hostWatchRenewMs: 5_000,
  hostWatchHoldMs: 10_000,
  /** Taken in one statement; and hosts that are connected to in one turn of the event loop. */
  hostWatchesAtOnce: 50,
  hostsConnectedAtOnce: 3,
  /** Audit events of hosts that others watch are remembered so long, longer than a watch takes to pass on, and so many. */
  toldEventsMs: 30_000,
  toldEventsMax: 1_000,
  /** Comparisons of whole hosts side by side. */
  hostsComparedAtOnce: 8,
  /** Where a new machine goes: hosts that are tried, looked at by each strategy, and how full one gets while others are free. */
  placementTries: 3,
  placementSpreadOf: 2,
  placementPackedOf: 8,
  placementPackedShare: 0.85,
  /** The share of all memory that is left below it in the hosts that are packed: views are old, and bursts come. */
  placementPackedRoom: 0.15,
  /** What Retry-After says where no host can take a machine now. */
  noHostRetrySeconds: 5,
  /** The longest that a host may be away on purpose without being taken for lost. */
  hostAwayMaxMs: 900_000,
  /** Of a gateway, where a database has several: counted so often, and for so long after its last word. */
  gatewayRenewMs: 5_000,
  gatewayLeaseMs: 15_000,
  /** An object in storage is held for so long before it is named, and a template's between two hosts that start; packs of an
   *  object that is held are younger than a sweep looks at. */
  storageHoldMs: 24 * 3_600_000,
  templateHoldMs: 30 * 24 * 3_600_000,
  /** Whoever reads what is dropped has so long to end. */
  storageGarbageMs: 3_600_000,
  /** Of the host that sweeps; how much it is given at once, and how often it lists the whole store. */
  sweepLeaseMs: 600_000,
  sweepBatch: 1_000,
  sweepListMs: 24 * 3_600_000,
  /** Of an operation, where a database has several gateways: looked at and renewed this often; let go of before it is over. */
  operationLeaseMs: 10_000,
  operationLookMs: 2_500,
  operationHoldMs: 7_500,
  /** What other gateways change: looked for this often where nobody tells, so much at once, kept and dropped so often. */
  changeLookMs: 1_000,
  changePage: 1_000,
  /** Records that are read at once where all are. */
  recordsPage: 200,
  changeKeepMs: 3_600_000,
  changePruneMs: 60_000,
  /** A sequence that was passed over is asked for this long; at a start those among the newest so many. */
  changeMissingMs: 60_000,
  changeOverlap: 1_000,
  /** Of the services without an API key: streams open at once, bytes of a message, requests in one stream of reflection. */
  openStreams: 100,
  openMessageBytes: 16_384,
  reflectionRequests: 1_000,
  /** How often a watch of health looks. */
  healthWatchMs: 2_000,
} as const;
