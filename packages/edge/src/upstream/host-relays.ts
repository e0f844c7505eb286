/**
 * Connections to hosts on other computers, made so that a host's program can be replaced while its machines run on:
 *
 *   unknown ──first connection: a watch is opened before it──▶ served ──DRAINING──▶ leaving: idle connections are closed, those in
 *      ▲                                                         │                  use are not kept, new ones wait
 *      └──────────── the watch ends ─────────────────────────────┴──────────────────────┘
 *
 * A connection that fails is tried again for a while, because the host's next program may be starting. Owns the
 * watches, and nothing that must survive a crash.
 */
import type { TLSSocket } from "node:tls";
import { type Clock, connectToAgentOver } from "@cloche/base";
import { ClocheError, type ErrorCode } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { EdgeLimits } from "../edge-limits.ts";
import { connectThroughRelay, connectToHost, type HostLinks, relayAddressOf, watchRelay } from "./relays.ts";

type Place = Pick<Route, "hostId" | "hostAddress">;

/** Codes of a host that is starting or has no lease. */
const passing: ReadonlySet<ErrorCode> = new Set(["unavailable", "not_found", "aborted"]);
const retryMs = 100;

export class HostRelays {
  readonly #links: HostLinks;
  readonly #limits: EdgeLimits;
  readonly #clock: Pick<Clock, "monotonicMs" | "sleep">;
  readonly #watches = new Map<string, Promise<{ close(): void }>>();
  /** Called when the host's program is about to end. */
  onDraining: (hostId: string) => void = () => undefined;

  constructor(links: HostLinks, limits: EdgeLimits, clock: Pick<Clock, "monotonicMs" | "sleep">) {
    this.#links = links;
    this.#limits = limits;
    this.#clock = clock;
  }

  /** Opens the channel to the machine's agent. Tries for `relayWaitMs`, or until `isWanted` returns false. */
  toAgent(route: Route, isWanted: () => boolean): Promise<TLSSocket> {
    return this.#patiently(isWanted, async () => {
      await this.#watched(route);
      const socket = await connectThroughRelay(this.#address(route), route.sandboxId);
      return await whenSecure(connectToAgentOver(socket, route.channelKey), this.#limits.agentConnectMs);
    });
  }

  /** Opens a connection for one request to the host itself. */
  toHost(place: Place, isWanted: () => boolean): Promise<TLSSocket> {
    return this.#patiently(isWanted, () => connectToHost(this.#address(place), "http/1.1"));
  }

  close(): void {
    for (const watch of this.#watches.values())
      watch.then(
        ({ close }) => close(),
        () => undefined,
      );
    this.#watches.clear();
  }

  async #patiently<T>(isWanted: () => boolean, connect: () => Promise<T>): Promise<T> {
    const untilMs = this.#clock.monotonicMs() + this.#limits.relayWaitMs;
    for (;;) {
      try {
        return await connect();
      } catch (error) {
        const isPassing = error instanceof ClocheError && passing.has(error.code);
        if (!isPassing || !isWanted() || this.#clock.monotonicMs() >= untilMs) throw error;
      }
      await this.#clock.sleep(retryMs);
      if (!isWanted()) throw new ClocheError("unavailable", "the sandbox has moved");
    }
  }

  /** Opens the host's watch before the first connection, so that no DRAINING is missed. */
  async #watched(place: Place): Promise<void> {
    const key = `${place.hostId} ${place.hostAddress}`;
    let watch = this.#watches.get(key);
    if (watch === undefined) {
      const forget = (): void => {
        if (this.#watches.get(key) === watch) this.#watches.delete(key);
      };
      const draining = (): void => this.onDraining(place.hostId);
      watch = watchRelay(this.#address(place), draining, forget);
      this.#watches.set(key, watch);
      watch.catch(forget);
    }
    await watch;
  }

  #address({ hostId, hostAddress }: Place): ReturnType<typeof relayAddressOf> {
    if (hostAddress === "")
      throw new ClocheError("unavailable", "the sandbox's host is not known", { retryAfterSeconds: 1 });
    return relayAddressOf(this.#links, hostId, hostAddress);
  }
}

/** Resolves when it is certain that the agent has the channel's key. */
function whenSecure(socket: TLSSocket, timeoutMs: number): Promise<TLSSocket> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown): void => {
      clearTimeout(timer);
      reject(new ClocheError("unavailable", "the sandbox cannot be reached", { cause }));
    };
    const timer = setTimeout(
      () => socket.destroy(new Error(`no handshake within ${timeoutMs} ms`)),
      timeoutMs,
    );
    socket.once("error", failed).once("close", failed);
    socket.once("secureConnect", () => {
      clearTimeout(timer);
      socket.off("error", failed).off("close", failed);
      resolve(socket);
    });
  });
}
