/**
 * Carries connections of edges on other computers to the agents of this host's machines, which only this host can reach.
 * The bytes are of the encrypted channel, which the relay cannot read. Its lines: packages/protocol/src/relay.ts.
 *
 *   an edge's TLS connection ──▶ line: which machine? ──▶ roused, connected: OK ──▶ bytes in both directions, until both sides end
 *
 * trust's ClusterPort accepts the connections and lets only edges in. A machine is roused before a byte goes to it, and kept awake
 * until it has answered a byte. Nothing survives a crash; edges connect
 * again.
 */
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { type Log, readLine } from "@cloche/base";
import {
  ClocheError,
  isRelayWatch,
  relayAnswer,
  relayDraining,
  relayLineBytes,
  relayRequested,
} from "@cloche/protocol";

/** Time for the first line, and time for the connection to the agent. */
const headMs = 5_000;

export interface RelayNeeds {
  /** Address of the machine's agent; undefined: no such machine runs here. */
  agentOf(sandboxId: string): { host: string; port: number } | undefined;
  /** Rouses the machine and keeps it awake until the returned function is called. */
  hold(sandboxId: string): Promise<() => void>;
  log: Log;
}

/**
 *   serving ──drain: watching edges are told──▶ draining (refuses new connections) ──▶ the last has ended, or the grace is over
 */
export class Relay {
  readonly #needs: RelayNeeds;
  readonly #watching = new Set<TLSSocket>();
  readonly #carrying = new Set<TLSSocket>();
  #isDraining = false;
  #onEnded: () => void = () => undefined;

  constructor(needs: RelayNeeds) {
    this.#needs = needs;
  }

  /** Relays an edge's connection. The socket is the relay's from here on. */
  serve(edge: TLSSocket): void {
    edge.on("error", () => edge.destroy());
    void this.#serve(edge).catch((err: unknown) => {
      this.#needs.log.debug({ err }, "a connection was not relayed");
      edge.destroy();
    });
  }

  /** Refuses new connections; waits up to `graceMs` for those under way. */
  async drain(graceMs: number): Promise<void> {
    this.#isDraining = true;
    for (const edge of this.#watching) edge.write(relayDraining);
    const ended = new Promise<void>((resolve) => {
      this.#onEnded = resolve;
    });
    if (this.#carrying.size === 0) return;
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, graceMs);
    });
    await Promise.race([ended, over]);
    clearTimeout(timer);
  }

  async #serve(edge: TLSSocket): Promise<void> {
    const line = await readLine(edge, relayLineBytes, AbortSignal.timeout(headMs));
    if (this.#isDraining) return void edge.end(relayAnswer("unavailable"));
    if (isRelayWatch(line)) return this.#watch(edge);
    const sandboxId = relayRequested(line);
    if (sandboxId === undefined) return void edge.end(relayAnswer("invalid_argument"));
    this.#carrying.add(edge);
    edge.once("close", () => {
      this.#carrying.delete(edge);
      if (this.#carrying.size === 0) this.#onEnded();
    });
    let agent: Socket;
    try {
      agent = await reach(this.#needs, sandboxId);
    } catch (error) {
      return void edge.end(relayAnswer(ClocheError.from(error).code));
    }
    edge.write(relayAnswer());
    carry(this.#needs, sandboxId, edge, agent);
  }

  #watch(edge: TLSSocket): void {
    this.#watching.add(edge);
    edge.once("close", () => this.#watching.delete(edge));
    // The edge sends nothing more; its end ends the connection.
    edge.once("end", () => edge.end());
    edge.resume();
    edge.write(relayAnswer());
  }
}

async function reach({ agentOf, hold }: RelayNeeds, sandboxId: string): Promise<Socket> {
  const target = agentOf(sandboxId);
  if (target === undefined) throw new ClocheError("not_found", "no such machine runs on this host");
  const release = await hold(sandboxId);
  const agent = connect({ ...target, noDelay: true, timeout: headMs, allowHalfOpen: true });
  try {
    agent.once("timeout", () => agent.destroy(new Error("the agent does not answer")));
    await once(agent, "connect");
    agent.setTimeout(0);
    return agent;
  } catch (cause) {
    agent.destroy();
    throw new ClocheError("unavailable", "the agent cannot be reached", { cause });
  } finally {
    release();
  }
}

function carry({ hold, log }: RelayNeeds, sandboxId: string, edge: TLSSocket, agent: Socket): void {
  let release: (() => void) | undefined;
  const answered = (): void => {
    release?.();
    release = undefined;
  };
  const end = (): void => {
    answered();
    edge.destroy();
    agent.destroy();
  };
  agent.on("data", (chunk: Buffer) => {
    answered();
    if (!edge.write(chunk)) agent.pause();
  });
  edge.on("drain", () => agent.resume());
  agent.on("end", () => edge.end());
  for (const socket of [edge, agent]) socket.on("close", end).on("error", end);
  void (async () => {
    // One chunk at a time: read the next when the machine has taken this one.
    for await (const chunk of edge.iterator({ destroyOnReturn: false })) {
      const held = await hold(sandboxId);
      if (agent.destroyed) return held();
      answered();
      release = held;
      if (!agent.write(chunk as Buffer)) await once(agent, "drain");
    }
    agent.end();
  })().catch((err: unknown) => {
    log.debug({ err, sandbox_id: sandboxId }, "a relayed connection ended");
    end();
  });
}
