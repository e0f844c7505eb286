import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { SandboxDataPlane } from "@cloche/sdk";
import { E2bError } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import type { HeldBytes } from "./held-bytes.ts";
import { watchDirectory, type WatchWish } from "./watch-events.ts";

const heldEvents = 10_000;
const watchersPerSandbox = 64;
/** A watcher is ended after this time without a request. */
const idleMs = 3_600_000;
/** Events of one change follow each other within this time. */
const settleMs = 50;
const settleChecks = 5;

interface Watcher {
  events: Fields[];
  /** Of the events, as JSON. */
  bytes: number;
  /** Why the watcher ended. */
  ended: E2bError | undefined;
  leaving: AbortController;
  idle: NodeJS.Timeout;
}

/** Waits, within a limit, until events came and then none for a moment: clients ask right after a change, with its events under way. */
async function settled(watcher: Watcher): Promise<void> {
  let seen = -1;
  for (let checks = 0; checks < settleChecks && (seen !== watcher.events.length || seen === 0); checks++) {
    seen = watcher.events.length;
    if (watcher.ended === undefined) await sleep(settleMs);
  }
}

/** The watchers of one sandbox that clients poll, such as E2B's synchronous Python client. */
export class Watchers {
  readonly #plane: SandboxDataPlane;
  readonly #held: HeldBytes;
  readonly #watchers = new Map<string, Watcher>();

  constructor(plane: SandboxDataPlane, held: HeldBytes) {
    this.#plane = plane;
    this.#held = held;
  }

  async create(path: string, wish: WatchWish): Promise<string> {
    if (this.#watchers.size >= watchersPerSandbox)
      throw new E2bError(
        "resource_exhausted",
        `there are ${watchersPerSandbox} watchers already; remove one`,
      );
    const leaving = new AbortController();
    const id = randomUUID();
    const watcher: Watcher = {
      events: [],
      bytes: 0,
      ended: undefined,
      leaving,
      idle: setTimeout(() => this.remove(id), idleMs).unref(),
    };
    this.#watchers.set(id, watcher);
    try {
      const { events } = await watchDirectory(this.#plane, path, wish, leaving.signal);
      void this.#gather(watcher, events);
    } catch (error) {
      this.remove(id);
      throw error;
    }
    return id;
  }

  /** New events since the last call. Throws if the watcher has ended and all events were answered. */
  async take(id: unknown): Promise<Fields[]> {
    const watcher = typeof id === "string" ? this.#watchers.get(id) : undefined;
    if (watcher === undefined)
      throw new E2bError("not_found", `watcher with id ${String(id).slice(0, 64)} not found`);
    watcher.idle.refresh();
    await settled(watcher);
    const events = this.#emptied(watcher);
    if (events.length === 0 && watcher.ended !== undefined) throw watcher.ended;
    return events;
  }

  /** Removes a watcher; may be repeated. */
  remove(id: unknown): void {
    const watcher = typeof id === "string" ? this.#watchers.get(id) : undefined;
    if (watcher === undefined) return;
    this.#watchers.delete(id as string);
    clearTimeout(watcher.idle);
    watcher.leaving.abort();
    this.#emptied(watcher);
  }

  close(): void {
    for (const id of this.#watchers.keys()) this.remove(id);
  }

  /** Takes the events out. */
  #emptied(watcher: Watcher): Fields[] {
    this.#held.give(watcher.bytes);
    watcher.bytes = 0;
    return watcher.events.splice(0);
  }

  async #gather(watcher: Watcher, events: AsyncIterable<Fields>): Promise<void> {
    try {
      for await (const event of events) {
        if (watcher.leaving.signal.aborted) return;
        if (watcher.events.length >= heldEvents)
          throw new E2bError("data_loss", `more than ${heldEvents} events were not asked for`);
        const bytes = Buffer.byteLength(JSON.stringify(event));
        if (!this.#held.take(bytes))
          throw new E2bError("data_loss", "there is no memory for more events that were not asked for");
        watcher.bytes += bytes;
        watcher.events.push(event);
      }
      watcher.ended = new E2bError("unavailable", "the watch has ended");
    } catch (error) {
      watcher.ended = E2bError.from(error);
      watcher.leaving.abort();
    }
  }
}
