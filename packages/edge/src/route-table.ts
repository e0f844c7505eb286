/**
 * Where every sandbox is, in memory: fed by RouteService.WatchRoutes, read on every request. While the stream is
 * broken, the last known table is used; after reconnecting, routes that the new stream did not name before SYNCED are
 * dropped.
 *
 *   connecting ──SET* SYNCED──▶ synced ⇄ (SET, REMOVE, KEYS) ──stream ends──▶ connecting (table kept)
 */
import type { Client } from "@connectrpc/connect";
import type { Clock, KeySet, Log } from "@cloche/base";
import type { VerificationKey } from "@cloche/protocol";
import {
  type KeySet as KeySetMessage,
  RouteEvent_Kind,
  type Route,
  type RouteService,
} from "@cloche/protocol/edge";

export type RouteClient = Client<typeof RouteService>;

export class RouteTable {
  #routes = new Map<string, Route>();
  #keys: KeySet | undefined;
  #synced = false;
  /** Epochs of routes that WakeSandbox returned before the stream reported them. */
  readonly #ahead = new Map<string, bigint>();
  readonly #waiting = new Map<string, Set<() => void>>();
  readonly #onChange: (sandboxId: string, route: Route | undefined) => void;

  /** `onChange`: a route was set, or removed (undefined). */
  constructor(onChange: (sandboxId: string, route: Route | undefined) => void) {
    this.#onChange = onChange;
  }

  get(sandboxId: string): Route | undefined {
    return this.#routes.get(sandboxId);
  }
  /** True: a missing route means an unknown sandbox. */
  get synced(): boolean {
    return this.#synced;
  }
  /** The public token keys; undefined until the stream brought them. */
  get keys(): KeySet | undefined {
    return this.#keys;
  }

  /**
   * Takes the route that WakeSandbox returned, unless the stream has already reported one of the same or a newer epoch.
   */
  setIfNewer(route: Route): void {
    const known = this.#routes.get(route.sandboxId);
    if (known !== undefined && known.epoch >= route.epoch) return;
    this.#ahead.set(route.sandboxId, route.epoch);
    this.#set(route);
  }

  /** True: the stream's route is older than the one WakeSandbox returned; it would cut off requests admitted since. */
  #isBehindWake(route: Route): boolean {
    const epoch = this.#ahead.get(route.sandboxId);
    if (epoch !== undefined && route.epoch < epoch) return true;
    this.#ahead.delete(route.sandboxId);
    return false;
  }

  #set(route: Route): void {
    this.#routes.set(route.sandboxId, route);
    this.#changed(route.sandboxId, route);
  }

  #remove(sandboxId: string): void {
    this.#ahead.delete(sandboxId);
    if (this.#routes.delete(sandboxId)) this.#changed(sandboxId, undefined);
  }

  #changed(sandboxId: string, route: Route | undefined): void {
    this.#onChange(sandboxId, route);
    const waiting = this.#waiting.get(sandboxId);
    this.#waiting.delete(sandboxId);
    for (const wake of waiting ?? []) wake();
  }

  /** Calls `wake` once at the next change of this sandbox's route; the returned function cancels that. */
  onceChanged(sandboxId: string, wake: () => void): () => void {
    const waiting = this.#waiting.get(sandboxId) ?? new Set();
    this.#waiting.set(sandboxId, waiting.add(wake));
    return () => {
      waiting.delete(wake);
      if (waiting.size === 0 && this.#waiting.get(sandboxId) === waiting) this.#waiting.delete(sandboxId);
    };
  }

  /** Follows the stream until `signal` aborts; `onSynced` is called each time the table is complete. */
  async watch(
    client: RouteClient,
    clock: Clock,
    log: Log,
    signal: AbortSignal,
    onSynced: () => void,
  ): Promise<void> {
    let backoffMs = 50;
    while (!signal.aborted) {
      try {
        for await (const event of this.#events(client, signal)) {
          if (event === "synced") {
            onSynced();
            backoffMs = 50;
          }
        }
        if (!signal.aborted) log.warn({}, "route stream ended; connecting again");
      } catch (error) {
        if (!signal.aborted) log.warn({ err: error }, "route stream broke; connecting again");
      }
      await clock.sleep(backoffMs, signal).catch(() => undefined);
      backoffMs = Math.min(backoffMs * 2, 2_000);
    }
  }

  async *#events(client: RouteClient, signal: AbortSignal): AsyncGenerator<"synced" | "changed"> {
    const seen = new Set<string>();
    this.#ahead.clear();
    let complete = false;
    for await (const event of client.watchRoutes({}, { signal })) {
      if (event.kind === RouteEvent_Kind.SET && event.route) {
        if (!complete) seen.add(event.route.sandboxId);
        // The epoch is not compared with the known route, because a restarted gateway may count its epochs anew. But
        // the stream may still be behind a route that WakeSandbox returned.
        if (!this.#isBehindWake(event.route)) this.#set(event.route);
      } else if (event.kind === RouteEvent_Kind.REMOVE && event.route) {
        seen.delete(event.route.sandboxId);
        this.#remove(event.route.sandboxId);
      } else if (event.kind === RouteEvent_Kind.KEYS && event.keys) {
        this.#keys = readKeys(event.keys);
      } else if (event.kind === RouteEvent_Kind.SYNCED) {
        for (const sandboxId of this.#routes.keys()) if (!seen.has(sandboxId)) this.#remove(sandboxId);
        complete = true;
        seen.clear();
        this.#synced = true;
        yield "synced";
      }
      yield "changed";
    }
  }
}

function readKeys(set: KeySetMessage): KeySet {
  return {
    issuer: set.issuer,
    keys: set.keys.map(({ kid, jwkJson }) => ({ kid, jwk: JSON.parse(jwkJson) as VerificationKey["jwk"] })),
  };
}
