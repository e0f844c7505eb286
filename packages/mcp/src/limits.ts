/** All limits of the MCP server. A model pays for each byte of an answer, so defaults are small. */
export const mcpLimits = {
  /** Bytes of each of stdout and stderr of one exec. */
  execOutputBytesDefault: 16_384,
  execOutputBytesMax: 262_144,
  execTimeoutSecondsDefault: 120,
  execTimeoutSecondsMax: 3_600,
  waitSecondsDefault: 60,
  waitSecondsMax: 3_600,
  /** Bytes of one read of a file, of a process's output or of a service's log. */
  readBytesDefault: 32_768,
  readBytesMax: 262_144,
  /** Largest file that `edit_file` changes: the limit of the contract's write. */
  editBytes: 1_048_576,
  listEntriesDefault: 200,
  listEntriesMax: 2_000,
  /** Bytes of one list of a directory as the sandbox gives it, of which `max_entries` are answered. */
  listBytes: 8 * 1_048_576,
  searchMatchesDefault: 100,
  searchMatchesMax: 1_000,
  searchLineBytes: 500,
  searchSeconds: 60,
  sandboxesListed: 200,
  checkpointsListed: 200,
  processesListed: 200,
  /** Bytes of one store value in an answer. */
  storeValueBytes: 262_144,
  storeKeysDefault: 200,
  storeKeysMax: 2_000,
  forks: 16,
  /** Bytes of one resource. A larger file is refused; of a larger log the newest bytes are read. */
  resourceBytes: 1_048_576,
  completions: 100,
  /** Longest wait for a create, fork, suspend or resume. */
  stateWaitMs: 120_000,
  /** Shortest and longest time between two progress notifications of a running call. */
  progressMinMs: 500,
  progressMaxMs: 5_000,
  progressMessageCharacters: 200,
} as const;
