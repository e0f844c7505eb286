/**
 * Every limit and default of the public surfaces, in one place. Sizes in bytes unless the name says otherwise. Limits on images that
 * containers pull are in packages/agent/src/oci-images/image-limits.ts.
 */
export const limits = {
  /** Data plane (spec/contract.md, Limits). */
  fileWriteBytes: 1_048_576,
  execOutputBytes: 16 * 1024 * 1024,
  execStdinBytes: 16 * 1024 * 1024,
  execStdinPieceBytes: 1_048_576,
  execArguments: 10_000,
  execArgumentBytes: 128 * 1024,
  pathBytes: 4_095,
  listEntries: 10_000,
  /** Length of a Unix user's or group's name, including `:group` where that is allowed. */
  accountNameBytes: 255,
  /** An extended attribute's name, `user.` included; all attributes of one file, as `x-file-attributes` counts them. */
  attributeNameBytes: 255,
  fileAttributesBytes: 4_000,
  /** Streamed writes and watches of one sandbox at once. Directories of one watch: native/guest/file-requests.h. */
  uploads: 256,
  watches: 64,
  fileLinkSeconds: 604_800,
  fileLinkSecondsDefault: 300,
  fileLinkBodyBytes: 65_536,
  storeKeyBytes: 512,
  storeValueBytes: 1_048_576,
  storeBatchOperations: 1_000,
  storeBatchBodyBytes: 64 * 1024 * 1024,
  /** 6,300 years: RFC 3339 ends with the year 9999. */
  storeTtlSeconds: 200_000_000_000,
  storeListKeys: 10_000,
  storeListKeysDefault: 1_000,
  /** Deleted files that are still open, at a suspend or live fork under gVisor: saving a byte takes 20 of memory. */
  deletedOpenBytes: 16 * 1024 * 1024,
  /** Also `maxLength` in spec/dataplane.openapi.yaml; host/src/checkpoint/manifest.ts bounds it in UTF-16. */
  checkpointNameLength: 128,
  checkpointWaitPollMs: 100,
  checkpointWaitTimeoutSeconds: 30,
  checkpointWaitTimeoutMaxSeconds: 3_600,
  serviceStartTimeoutMs: 60_000,
  serviceStartTimeoutSecondsMax: 3_600,
  serviceStopTimeoutMs: 10_000,
  serviceStopTimeoutSecondsMax: 600,
  /** A restore or cold start answers after this time; services that still start then go on. */
  servicesStartedTogetherMs: 240_000,
  serviceLogBytes: 8 * 1024 * 1024,
  serviceLogFiles: 2,
  servicesPerSandbox: 256,
  /** Processes of one sandbox (docs/processes.md), running and remembered ones. */
  processesPerSandbox: 1_000,
  processOutputBytesDefault: 1_048_576,
  processOutputBytesMax: 64 * 1024 * 1024,
  /** Output kept of all processes of a sandbox: this share of its memory, within these bounds. */
  processOutputMemoryShare: 1 / 16,
  processOutputTotalBytesMin: 16 * 1024 * 1024,
  processOutputTotalBytesMax: 512 * 1024 * 1024,
  processKeepSecondsDefault: 3_600,
  processKeepSecondsMax: 604_800,
  processTagBytes: 256,
  /** Bytes of `cmd` in ProcessInfo; the rest is left out. */
  processCommandShownBytes: 4_096,
  /** Clients that follow or are attached to one process at once. */
  processReaders: 100,
  /** A reader that does not read for this long while there is output is cut off. */
  processReaderStallMs: 60_000,
  processWaitTimeoutSeconds: 30,
  processWaitTimeoutMaxSeconds: 3_600,
  /** One message to an attached process. */
  processMessageBytes: 1_048_576,
  terminalCells: 65_535,
  /** JSON bodies that the agent parses, without a smaller limit of their own. */
  jsonBodyBytes: 24 * 1024 * 1024,
  /**
   * JSON that gateway, edge, host, E2B's and MCP's endpoints parse, in a process of all teams: values in it (parsing
   * them takes some milliseconds); bytes of a call of E2B's clients inside a sandbox; of the checkpoint and restore
   * routes.
   */
  jsonValues: 50_000,
  /** Fields of a protobuf message of a gateway call, those of inner messages included; parsing one takes as long as some values of JSON. */
  protoFields: 10_000,
  messageBytes: 4 * 1024 * 1024,
  checkpointBodyBytes: 128 * 1024,
  /** HTTP servers. */
  headerBytes: 64 * 1024,
  headerCount: 200,
  headersTimeoutMs: 30_000,
  idleConnectionMs: 75_000,
  urlBytes: 32 * 1024,
  requestIdLength: 128,
  /** Gateway. */
  gatewayBodyBytes: 1_048_576,
  sandboxNameLength: 64,
  metadataEntries: 64,
  metadataKeyLength: 128,
  metadataValueLength: 1_024,
  envEntries: 256,
  envBytes: 128 * 1024,
  pageSize: 1_000,
  /** Bytes of a list's page, which then ends with a token for the rest: less than gRPC's clients take by default. */
  pageBytes: 4 * 1024 * 1024 - 4 * 1024,
  /** Entries of a list without a page size; a token leads to the rest. Equal to a team's default quota of sandboxes. */
  unpagedList: 10_000,
  /** Bytes of a list of sandboxes without a page size: 10,000 records with 1 KiB of metadata each fit. */
  unpagedListBytes: 16 * 1024 * 1024,
  auditPageSizeDefault: 100,
  createAnswerMs: 10_000,
  durableAnswerMs: 60_000,
  /** Clones of one ForkSandbox. */
  forkCount: 100,
  idempotencyKeyLength: 128,
  idempotencyKeepSeconds: 86_400,
  cpusMin: 0.1,
  cpusMax: 64,
  memoryMbMin: 128,
  memoryMbMax: 262_144,
  diskMbMin: 1_024,
  diskMbMax: 1_048_576,
  timeoutSecondsMax: 31_536_000,
  /** Bounds of checkpoint_every_seconds, besides 0 (never). */
  checkpointEverySecondsMin: 60,
  checkpointEverySecondsMax: 86_400,
  /** Automatic checkpoints that are kept of one sandbox. */
  automaticCheckpoints: 3,
  publicPorts: 64,
  /** API keys of one team that are neither revoked nor expired. */
  apiKeysPerTeam: 500,
  /** Egress (docs/network.md). */
  domainLength: 253,
  egressDomains: 128,
  egressCidrs: 128,
  /** The latest denied destinations and names in GetSandboxEgress. */
  egressDenials: 50,
} as const;

/** Limits of one team at the gateway. 0: no limit. */
export interface TeamLimits {
  sandboxes: number;
  /** Calls that run at once. */
  concurrentCalls: number;
  /** Calls of each API key; a burst may use five seconds' worth at once. */
  callsPerSecond: number;
}

/** Checkpoints of one team on a host. 0: no limit. */
export interface CheckpointLimits {
  count: number;
  /** Sum of `size_bytes`; new checkpoints are refused once the sum reaches this. */
  bytes: number;
}

/** The setting is in GiB; the limit made from it is in bytes. */
const checkpointGb = 0;

export const defaults = {
  gatewayPort: 7080,
  edgePort: 7443,
  /** The edge without TLS, on the loopback. */
  edgeHttpPort: 7081,
  /** MCP over HTTP, on the gateway's address. */
  mcpPort: 7083,
  /** The endpoint for E2B's clients, on the loopback. */
  e2bPort: 7082,
  baseDomain: "cloche.localhost",
  tokenLifetimeSeconds: 3_600,
  /** The size of a sandbox, and of ready machines. Also written in sandbox.proto (spec/proto) and docs/gateway.md. */
  cpus: 2,
  memoryMb: 1_024,
  diskMb: 8_192,
  template: "base",
  checkpointLimits: { count: 10_000, bytes: checkpointGb * 1024 ** 3 } satisfies CheckpointLimits,
  checkpointGb,
  /** Requests to one sandbox at the edge; a setting, 0: no limit. */
  requestsPerSecond: 50_000,
  /** Limits of one team; settings, 0: no limit (docs/operations.md). */
  teamLimits: { sandboxes: 10_000, concurrentCalls: 1_024, callsPerSecond: 1_000 } satisfies TeamLimits,
  /** A gVisor sandbox without requests and processes for this long is frozen; a setting, 0: never. */
  dozeSeconds: 4,
  /** The agent's port inside every sandbox: above Linux's ephemeral ports, where programs rarely listen. */
  agentPort: 61_070,
} as const;
