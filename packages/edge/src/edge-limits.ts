import { listenerBounds, placesOf } from "@cloche/base";
import { defaults, limits } from "@cloche/protocol";

/** Every limit and timeout of the edge. Sizes in bytes, times in milliseconds. */
export interface EdgeLimits {
  headerBytes: number;
  headerCount: number;
  urlBytes: number;
  /** The longest that a TLS handshake, and a request head, may take. */
  handshakeTimeoutMs: number;
  headersTimeoutMs: number;
  /** Bytes buffered for an HTTP/1.1 connection, beyond the kernel's buffers, until client or sandbox reads them. */
  clientBufferBytes: number;
  /** How long a client connection is kept open without a request. */
  idleConnectionMs: number;
  /** A request is refused whose body brings no byte for this long. */
  bodyStallMs: number;
  /** Bodies up to this size are sent to the agent in one piece, once they are complete. */
  bufferedBodyBytes: number;
  /** Client connections of all listeners, in all and of one address. */
  connections: number;
  connectionsPerAddress: number;
  /** Requests to one sandbox, its ports included; a burst may use five seconds' worth at once. 0: no limit. */
  requestsPerSecond: number;
  /** Requests that one connection may send ahead of their answers. */
  pipelinedRequests: number;
  /** Streams of one HTTP/2 connection that are open at once. */
  streams: number;
  /** Bytes that a stream, and a connection, may send before the sandbox reads: a stalled stream blocks no other. */
  streamWindowBytes: number;
  connectionWindowBytes: number;
  /** Bytes in memory that a sandbox or a client does not take (held-bytes.ts). */
  heldOfSandbox: number;
  heldOfTeam: number;
  heldOfEdge: number;
  /** Streams that the client resets, as a burst and a rate; pings and settings. More of them end the connection. */
  streamResetBurst: number;
  streamResetsPerSecond: number;
  controlFramesPerSecond: number;
  /** A client that shut its sending side still gets an answer within this time... */
  halfClosedGraceMs: number;
  /** ...and an exec's client for less time, because a client that goes away ends its command. */
  halfClosedExecGraceMs: number;
  /** After an early answer, how much of the rest of the request is read so that the client sees the answer... */
  lingerBytes: number;
  /** ...how long without a byte of it (and how long a client has to read the last answer of its connection)... */
  lingerMs: number;
  /** ...and how long at all. */
  lingerWholeMs: number;
  agentConnectMs: number;
  /** How long a connection to a host on another computer is tried, whose program may be restarting. */
  relayWaitMs: number;
  /** Deadline of the edge's own requests to an agent: a tunnel to a port, the end of an exec. */
  agentAnswerMs: number;
  /** Kept-alive connections to one sandbox; idle ones are closed before the agent's own keep-alive ends. */
  agentConnections: number;
  agentIdleConnections: number;
  agentIdleMs: number;
  /** How long an agent may take for the first request on a connection opened ahead. */
  agentAheadMs: number;
  /** How long a request waits for a restore from a checkpoint to end. */
  busyWaitMs: number;
  /** How long a request waits for a sandbox that is CREATING or RESUMING: the news that it is RUNNING may be on its way. */
  comingMs: number;
  /** How long a request waits for a suspended sandbox to wake. */
  wakeMs: number;
  /** Waiting requests with a token, for one sandbox and for all sandboxes of a team. */
  waitingOfSandbox: number;
  waitingOfTeam: number;
  /** Waiting requests of visitors of public ports, who have no token; counted separately. */
  visitorsOfSandbox: number;
  visitorsOfTeam: number;
  /** Requests of visitors under way, WebSockets included, for one sandbox and for all sandboxes of a team. */
  visitsOfSandbox: number;
  visitsOfTeam: number;
  /** Bytes of the head of an answer and of the 1xx answers before it, and of its trailers; lines of a head. */
  answerHeadBytes: number;
  answerHeadLines: number;
  /** Chunks, lines and DATA frames of one sandbox that are read in a millisecond (PieceRate of base). */
  piecesPerMs: number;
}

/** A read of a connection, such as one record of TLS, counts as so many pieces. */
export const readPieces = 16;

export const edgeLimits: EdgeLimits = {
  headerBytes: limits.headerBytes,
  headerCount: limits.headerCount,
  urlBytes: limits.urlBytes,
  handshakeTimeoutMs: listenerBounds.handshakeMs,
  headersTimeoutMs: listenerBounds.headMs,
  clientBufferBytes: 256 * 1024,
  idleConnectionMs: listenerBounds.idleMs,
  bodyStallMs: listenerBounds.bodyStallMs,
  bufferedBodyBytes: 64 * 1024,
  ...placesOf("edge"),
  requestsPerSecond: defaults.requestsPerSecond,
  pipelinedRequests: listenerBounds.pipelinedRequests,
  streams: listenerBounds.streams,
  streamWindowBytes: 256 * 1024,
  connectionWindowBytes: 4 * 1024 * 1024,
  heldOfSandbox: 32 * 1024 * 1024,
  heldOfTeam: 128 * 1024 * 1024,
  heldOfEdge: 512 * 1024 * 1024,
  streamResetBurst: listenerBounds.streamResetBurst,
  streamResetsPerSecond: listenerBounds.streamResetsPerSecond,
  controlFramesPerSecond: listenerBounds.controlFramesPerSecond,
  halfClosedGraceMs: 10_000,
  halfClosedExecGraceMs: 500,
  lingerBytes: 256 * 1024 * 1024,
  lingerMs: listenerBounds.lingerMs,
  lingerWholeMs: 120_000,
  agentConnectMs: 5_000,
  relayWaitMs: 20_000,
  agentAnswerMs: 10_000,
  agentConnections: 1_024,
  agentIdleConnections: 128,
  agentIdleMs: 30_000,
  agentAheadMs: 1_000,
  busyWaitMs: 15_000,
  comingMs: 1_000,
  wakeMs: 30_000,
  waitingOfSandbox: 256,
  waitingOfTeam: 1_000,
  visitorsOfSandbox: 64,
  visitorsOfTeam: 256,
  visitsOfSandbox: 1_024,
  visitsOfTeam: 2_048,
  answerHeadBytes: 64 * 1024,
  answerHeadLines: 1_000,
  piecesPerMs: 1_024,
};
