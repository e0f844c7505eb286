/**
 * A model of kill -9: all calls of a gateway to its database and its host go through `guard`, which counts them. At the
 * n-th event the process dies, before or after the event's effect. From then on its calls have no effect and return
 * nothing. A new gateway on the same database and host is the next start.
 */
import type { Database } from "../database/database.ts";
import type { HostClient } from "../hosts/host-calls.ts";

export class Killed extends Error {
  override readonly name = "Killed";
}

export class Mortal {
  /** Resolves when the process has died. */
  readonly death: Promise<void>;
  events = 0;
  readonly log: string[] = [];
  #dieAt = Number.POSITIVE_INFINITY;
  #when: "before" | "after" = "before";
  #isDead = false;
  #die: () => void = () => undefined;

  constructor() {
    this.death = new Promise((resolve) => {
      this.#die = () => {
        this.#isDead = true;
        resolve();
      };
    });
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  /** From now on, dies at the `event`-th event (the first is 1). */
  arm(event: number, when: "before" | "after"): void {
    this.events = 0;
    this.log.length = 0;
    this.#dieAt = event;
    this.#when = when;
  }

  kill(): void {
    this.#die();
  }

  database(database: Database): Database {
    const wrapped: Record<string, unknown> = {};
    for (const name of [
      "teams",
      "apiKeys",
      "sandboxes",
      "operations",
      "portLinks",
      "fileLinks",
      "idempotencyKeys",
      "audit",
      "usage",
      "hosts",
      "storedNames",
      "gateways",
      "secrets",
    ] as const) {
      wrapped[name] = this.#wrap(name, database[name]);
    }
    wrapped["changeLog"] =
      database.changeLog && this.#wrap("changeLog", database.changeLog, new Set(["listen", "announce"]));
    wrapped["ping"] = () => this.#guard("ping", () => database.ping());
    wrapped["close"] = () => Promise.resolve();
    return wrapped as unknown as Database;
  }

  host(client: HostClient): HostClient {
    return this.#wrap("host", client, new Set(["watchMachines"]));
  }

  #wrap<T extends object>(name: string, target: T, free: ReadonlySet<string> = new Set()): T {
    return new Proxy(target, {
      get: (_target, property) => {
        const value = target[property as keyof T];
        if (typeof value !== "function") return value;
        const call = value.bind(target) as (...args: unknown[]) => Promise<unknown>;
        if (free.has(String(property))) return call;
        return (...args: unknown[]) => this.#guard(`${name}.${String(property)}`, () => call(...args));
      },
    });
  }

  async #guard<T>(name: string, effect: () => Promise<T>): Promise<T> {
    if (this.#isDead) throw new Killed(name);
    this.events += 1;
    this.log.push(name);
    const isLast = this.events === this.#dieAt;
    if (isLast && this.#when === "before") {
      this.#die();
      throw new Killed(name);
    }
    try {
      return await effect();
    } finally {
      if (isLast) this.#die();
      // A dead process does not learn the outcome.
      // oxlint-disable-next-line no-unsafe-finally
      if (this.#isDead) throw new Killed(name);
    }
  }
}
