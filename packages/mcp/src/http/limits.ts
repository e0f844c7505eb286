/** Limits of the HTTP endpoint. */
export const httpLimits = {
  connections: 1_024,
  /** Of one API key, under way at once, streams included. */
  requestsPerKey: 128,
  /** Sessions of clients of the 2025 protocols: of one API key, and of all. */
  sessionsPerKey: 64,
  sessions: 1_024,
  /** A session in which nobody asks and nothing is under way is closed after so long. */
  sessionIdleMs: 30 * 60_000,
  sweepMs: 60_000,
  /** A write of 1 MiB as base64, with room. */
  bodyBytes: 4 * 1_048_576,
  headerBytes: 16 * 1_024,
  headersTimeoutMs: 30_000,
  keepAliveMs: 15_000,
  apiKeyBytes: 512,
} as const;
