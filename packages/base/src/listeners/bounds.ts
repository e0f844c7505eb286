/**
 * The bounds of every port on which the service listens: gateway, edge, E2B, MCP, the cluster's port and the operator's
 * port. SECURITY.md has them as a table. Sizes in bytes, times in milliseconds.
 */
import { readFileSync } from "node:fs";
import { limits } from "@cloche/protocol";

/** Connections that each listener may have open. The edge's ports, with and without TLS, are one listener; on a single machine E2B's too. */
const connectionsOf = {
  gateway: 4_096,
  edge: 10_000,
  e2b: 2_048,
  mcp: 1_024,
  // Many, because an edge keeps some connections to each machine that it serves.
  cluster: 10_000,
  operator: 64,
} as const;

export type ListenerName = keyof typeof connectionsOf;

export const listenerBounds = {
  /** The share of a listener's connections that one address may have: others always find places. */
  addressShare: 1 / 2,
  /** Time for a TLS handshake, for a request's head, and for the whole body of a call. */
  handshakeMs: 10_000,
  headMs: limits.headersTimeoutMs,
  bodyMs: 2 * limits.headersTimeoutMs,
  /** A body that streams may take longer, but brings a byte within this time. */
  bodyStallMs: 30_000,
  /** How long a connection may stay without a request. */
  idleMs: limits.idleConnectionMs,
  /** HTTP/1.1: requests of a connection that wait until the one before is answered; one more ends the connection. */
  pipelinedRequests: 64,
  /** The rest of a request that was answered early is read and dropped for this long. */
  lingerMs: 5_000,
  /** HTTP/2: streams of a connection, bytes that a stream may send before they are read, MB of node for a connection. */
  streams: 128,
  streamWindowBytes: 64 * 1024,
  sessionMemoryMb: 16,
  /** HTTP/2: streams that the client resets, as a burst and a rate; pings and settings. More end the connection. */
  streamResetBurst: 256,
  streamResetsPerSecond: 64,
  controlFramesPerSecond: 1_000,
  /** Heads and bodies held of one connection before the caller's credential is known. */
  strangerBytes: 16 * 1024,
  /**
   * Bodies held after that: of all calls of one team, and of the process. And again as much of answers that clients do
   * not take.
   */
  teamBytes: 64 * 1024 * 1024,
  processBytes: 256 * 1024 * 1024,
  /** Lists and other large reads of one team that are made at once; others wait in line. */
  readsOfTeam: 2,
} as const;

/** Bytes of an HTTP/2 connection that are neither heads nor bodies, such as window updates. More end the connection. */
export const otherFrames = {
  /** At the beginning, and what a connection may save up. */
  firstBytes: 64 * 1024,
  mostBytes: 1024 * 1024,
  bytesPerSecond: 16 * 1024,
  /** A client acknowledges what it reads: careful ones with two window updates for 4 KiB. */
  shareOfWritten: 1 / 64,
  /** For each stream: its heads, and what of its body was under way when it closed. */
  headBytes: limits.headerBytes,
  windowBytes: 256 * 1024,
} as const;

/**
 * What one member of a cluster may have at another's port. It is known by its certificate, but its computer may have
 * been taken over.
 */
export const memberBounds = {
  /** Connections of calls. A host has three to each gateway. */
  connections: 16,
  /** A gateway may have two calls under way for each of a host's 1,000 machines. More calls wait at the caller. */
  streams: 2_048,
  /** One stream's bytes that are not read yet. */
  streamWindowBytes: 256 * 1024,
  /** Largest request: the 65,534 packs that a checkpoint may have, twice. */
  requestBytes: 8 * 1024 * 1024,
  /** Largest answer: all machines of a host, such as 10,000 that are suspended with 2 GB each in storage. */
  answerBytes: 48 * 1024 * 1024,
  /** Requests and unread answers: of a member, and of all together. */
  heldBytes: 64 * 1024 * 1024,
  processBytes: 256 * 1024 * 1024,
  /** All calls of an edge may end at once, when its clients leave. */
  streamResetBurst: 2_048,
  streamResetsPerSecond: 512,
  /** The share of a port's connections: edges relay those of their clients, and gateways must still find places. */
  connectionShare: 9 / 10,
} as const;

/** The share of the process's file descriptors for accepted connections. The others are for connections to sandboxes. */
const descriptorShare = 1 / 2;

/** Descriptors that the process may have. Node raises the soft limit to the hard one when it starts. */
function descriptorLimit(): number {
  const [, soft = ""] = /^Max open files +(\S+)/m.exec(readFileSync("/proc/self/limits", "utf8")) ?? [];
  return soft === "unlimited" ? Infinity : Number(soft);
}

/**
 * How many connections a listener may have, in all and of one address. With few descriptors, all listeners get
 * proportionally less.
 */
export function placesOf(
  name: ListenerName,
  descriptors = descriptorLimit(),
): { connections: number; connectionsPerAddress: number } {
  const all = Object.values(connectionsOf).reduce((sum, connections) => sum + connections, 0);
  // No process has both an edge and a cluster's port.
  const together = all - Math.min(connectionsOf.edge, connectionsOf.cluster);
  const scale = Math.min(1, (descriptors * descriptorShare) / together);
  const connections = Math.max(2, Math.floor(connectionsOf[name] * scale));
  return { connections, connectionsPerAddress: Math.ceil(connections * listenerBounds.addressShare) };
}
