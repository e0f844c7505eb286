import { defaults, limits } from "@cloche/protocol";

/** Every limit and timeout of the edge. Sizes in bytes, times in milliseconds. */
export interface EdgeLimits {
  headerBytes: number;
  headerCount: number;
  urlBytes: number;
  /** A TLS handshake or a request head that takes longer is given up. */
  handshakeTimeoutMs: number;
  headersTimeoutMs: number;
  /** Of a connection of HTTP/1.1, beyond what the kernel has: what its client has not taken yet, or its sandbox. */
  clientBufferBytes: number;
  /** A kept-alive client connection without a request. */
  idleConnectionMs: number;
  /** A request body that brings no byte for so long. */
  bodyStallMs: number;
  /** Bodies up to this size reach the agent in one piece, and never before they are whole. */
  bufferedBodyBytes: number;
  /** Clients' connections of all listeners (connection-places.ts). */
  connections: number;
  /** Of one sandbox, its ports included; five seconds' worth at once. 0: no limit. */
  requestsPerSecond: number;
  /** Requests that one connection may send ahead of their answers. */
  pipelinedRequests: number;
  /** Of one HTTP/2 connection: streams that are open at once. */
  streams: number;
  /** What a stream may send ahead of the sandbox that takes it, and all of a connection: one that stands still holds up no other. */
  streamWindowBytes: number;
  connectionWindowBytes: number;
  /** Streams that the client itself resets, at once and as they go on; pings and settings. More end the connection. */
  streamResetBurst: number;
  streamResetsPerSecond: number;
  controlFramesPerSecond: number;
  /** A client that shut its sending side still gets an answer that comes within this time... */
  halfClosedGraceMs: number;
  /** ...and less for an exec, since a client that goes away kills its command. */
  halfClosedExecGraceMs: number;
  /** After an early answer, how much of the rest of the request is read so that the client sees the answer... */
  lingerBytes: number;
  /** ...how long without a byte of it (and how long a client has to read the last answer of its connection)... */
  lingerMs: number;
  /** ...and how long at all. */
  lingerWholeMs: number;
  agentConnectMs: number;
  /** How long a connection to a host on another computer is tried for, whose program may be starting again. */
  relayWaitMs: number;
  /** What the edge asks an agent for itself: a tunnel to a port, the end of an exec. */
  agentAnswerMs: number;
  /** Kept-alive connections to one sandbox; idle ones are closed before the agent's own keep-alive ends. */
  agentConnections: number;
  agentIdleConnections: number;
  agentIdleMs: number;
  /** How long a request waits for a restore to end, and for a sandbox to wake. */
  busyWaitMs: number;
  wakeMs: number;
  /** Requests with a token that wait for that, of one sandbox and of all of one team. */
  waitingOfSandbox: number;
  waitingOfTeam: number;
  /** Visitors of public ports, who have no token, apart from those: they wait for a restore and for a sandbox to wake. */
  visitorsOfSandbox: number;
  visitorsOfTeam: number;
  /** The head of an agent's answer. */
  answerHeadBytes: number;
}

export const edgeLimits: EdgeLimits = {
  headerBytes: limits.headerBytes,
  headerCount: limits.headerCount,
  urlBytes: limits.urlBytes,
  handshakeTimeoutMs: 10_000,
  headersTimeoutMs: limits.headersTimeoutMs,
  clientBufferBytes: 256 * 1024,
  idleConnectionMs: limits.idleConnectionMs,
  bodyStallMs: 30_000,
  bufferedBodyBytes: 64 * 1024,
  connections: 10_000,
  requestsPerSecond: defaults.requestsPerSecond,
  pipelinedRequests: 64,
  streams: 128,
  streamWindowBytes: 256 * 1024,
  connectionWindowBytes: 16 * 1024 * 1024,
  streamResetBurst: 256,
  streamResetsPerSecond: 64,
  controlFramesPerSecond: 1_000,
  halfClosedGraceMs: 10_000,
  halfClosedExecGraceMs: 500,
  lingerBytes: 256 * 1024 * 1024,
  lingerMs: 5_000,
  lingerWholeMs: 120_000,
  agentConnectMs: 5_000,
  relayWaitMs: 20_000,
  agentAnswerMs: 10_000,
  agentConnections: 1_024,
  agentIdleConnections: 128,
  agentIdleMs: 30_000,
  busyWaitMs: 15_000,
  wakeMs: 30_000,
  waitingOfSandbox: 256,
  waitingOfTeam: 1_000,
  visitorsOfSandbox: 64,
  visitorsOfTeam: 256,
  answerHeadBytes: 64 * 1024,
};
