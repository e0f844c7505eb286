/** Every limit of the MCP server, in one place. A model pays for each byte that a tool answers, so defaults are small. */
export const mcpLimits = {
  /** Of each of stdout and stderr of one exec. */
  execOutputBytesDefault: 16_384,
  execOutputBytesMax: 262_144,
  execTimeoutSecondsDefault: 120,
  execTimeoutSecondsMax: 3_600,
  waitSecondsDefault: 60,
  waitSecondsMax: 3_600,
  /** Of one read of a file, of a process's output or of a service's log. */
  readBytesDefault: 32_768,
  readBytesMax: 262_144,
  /** Files that `edit_file` changes: what the contract's write takes. */
  editBytes: 1_048_576,
  listEntriesDefault: 200,
  listEntriesMax: 2_000,
  searchMatchesDefault: 100,
  searchMatchesMax: 1_000,
  searchLineBytes: 500,
  searchSeconds: 60,
  sandboxesListed: 200,
  checkpointsListed: 200,
  processesListed: 200,
  /** Of one store value that is answered. */
  storeValueBytes: 262_144,
  storeKeysDefault: 200,
  storeKeysMax: 2_000,
  forks: 16,
  /** Of one resource; a larger file is refused, of a log the newest are read. */
  resourceBytes: 1_048_576,
  completions: 100,
  /** How long a create, fork, suspend or resume is waited for. */
  stateWaitMs: 120_000,
  /** Progress is told at most so often, and at least so often while a call runs. */
  progressMinMs: 500,
  progressMaxMs: 5_000,
  progressMessageCharacters: 200,
} as const;
