/** Limits of the HTTP endpoint. */
export const httpLimits = {
  /** Requests under way at once, with streams: of one API key, and of one team. */
  requestsPerKey: 128,
  requestsPerTeam: 256,
  bodyBytesPerTeam: 64 * 1_048_576,
  /** How often the keys of requests under way are checked again. */
  keyCheckMs: 5_000,
  /** Sessions of clients of the 2025 protocols: of one API key, of one team, and of all. */
  sessionsPerKey: 64,
  sessionsPerTeam: 256,
  sessions: 1_024,
  /** A session without requests is closed after this time. */
  sessionIdleMs: 30 * 60_000,
  sweepMs: 60_000,
  /** Room for a write of 1 MiB as base64. */
  bodyBytes: 4 * 1_048_576,
  headerBytes: 16 * 1_024,
  headersTimeoutMs: 30_000,
  /** How long a kept connection may be silent, as at the other endpoints: a client that asks as it is closed fails. */
  idleConnectionMs: 75_000,
  keepAliveMs: 15_000,
  apiKeyBytes: 512,
} as const;
