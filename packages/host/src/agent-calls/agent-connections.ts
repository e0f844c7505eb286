/**
 * Kept connections of the host to the agents, at most one idle connection for each agent, because each new one costs a handshake.
 *
 *   idle ──call──▶ busy ──whole answer──▶ idle ──idle for idleMs, a byte or an end from the agent, the machine's end──▶ closed
 *                   └── anything else ──▶ closed
 *
 * A connection is known by the agent's address and the machine's channel key, so a machine never gets a call for the machine that had
 * its address before. A clone has its source's connections in its memory; its agent ends them at its own Assign.
 * Only AgentClient calls it. Nothing needs to survive a crash.
 */
import { Agent, type ClientRequest, type ClientRequestArgs, request } from "node:http";
import type { Duplex } from "node:stream";
import { connectToAgent } from "@cloche/base";
import { wholeAnswer } from "./whole-answer.ts";

/** Below the agent's `idleConnectionMs` (75 s), so that the agent seldom ends a connection that is about to be used. */
const idleMs = 60_000;
/** A connection used so recently needs no check before a call that must not be repeated. */
const certainForMs = 20;
/** Of the check; a connection that does not answer in time is replaced. */
const checkMs = 1_000;
const checkBytes = 1_024;

/** An agent as far as its channel goes. */
export interface AgentEnd {
  host: string;
  port: number;
  /** The channel key. */
  key: Buffer;
}

export class AgentConnections {
  readonly #kept = new KeptConnections();

  /** What a request needs to go over a kept connection, or over a new one, which is then kept. */
  optionsFor({ host, port, key }: AgentEnd): ClientRequestArgs {
    return { host, port, agent: this.#kept, [channelKey]: key } as ClientRequestArgs;
  }

  /** Before a call that must not be repeated: closes the idle connection if it is of no use any more. */
  async check(end: AgentEnd, signal: AbortSignal | undefined): Promise<void> {
    const idle = this.#kept.idle(end);
    if (idle === undefined || performance.now() - (idle.idleSinceMs ?? 0) < certainForMs) return;
    const call = request({ ...this.optionsFor(end), method: "GET", path: "/healthz" });
    await wholeAnswer(call, "", { deadlineMs: checkMs, bytes: checkBytes, keep: true, signal }).catch(() =>
      this.close(end),
    );
  }

  /** Closes the idle connections to an agent; without a key those to any agent at that address. */
  close(end: Omit<AgentEnd, "key"> & { key?: Buffer }): void {
    this.#kept.closeIdle(end);
  }

  /** Number of idle connections. */
  get idle(): number {
    return Object.values(this.#kept.freeSockets).reduce((sum, sockets) => sum + (sockets?.length ?? 0), 0);
  }

  closeAll(): void {
    this.#kept.destroy();
  }
}

const channelKey = Symbol("channel key");

interface KeptSocket extends Duplex {
  idleSinceMs?: number;
}

const addressOf = ({ host, port }: { host: string; port: number }): string => `${host}:${port}:`;

class KeptConnections extends Agent {
  constructor() {
    super({ keepAlive: true, maxFreeSockets: 1, scheduling: "lifo" });
  }

  override getName(options?: object): string {
    const { host, port, [channelKey]: key } = options as ClientRequestArgs & { [channelKey]: Buffer };
    return addressOf({ host: host ?? "", port: Number(port) }) + key.toString("base64url");
  }

  override createConnection(options: object): Duplex {
    const { host, port, [channelKey]: key } = options as ClientRequestArgs & { [channelKey]: Buffer };
    return connectToAgent({ host: host ?? "", port: Number(port), key });
  }

  override keepSocketAlive(socket: KeptSocket): boolean {
    socket.idleSinceMs = performance.now();
    // Bytes on an idle connection belong to no call. An end would otherwise leave the connection half open.
    socket.on("data", endIt).on("end", endIt);
    const isKept = super.keepSocketAlive(socket) as unknown as boolean;
    (socket as unknown as { setTimeout(ms: number): void }).setTimeout(idleMs);
    return isKept;
  }

  override reuseSocket(socket: KeptSocket, call: ClientRequest): void {
    socket.off("data", endIt).off("end", endIt);
    super.reuseSocket(socket, call);
  }

  idle(end: AgentEnd): KeptSocket | undefined {
    return this.freeSockets[addressOf(end) + end.key.toString("base64url")]?.at(-1);
  }

  closeIdle({ host, port, key }: Omit<AgentEnd, "key"> & { key?: Buffer }): void {
    const name = addressOf({ host, port }) + (key?.toString("base64url") ?? "");
    for (const [of, sockets] of Object.entries(this.freeSockets))
      if (of === name || (key === undefined && of.startsWith(name)))
        for (const socket of sockets ?? []) socket.destroy();
  }
}

function endIt(this: Duplex): void {
  this.destroy();
}
