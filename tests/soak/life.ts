// One sandbox's life under load: one random operation after another, each checked against a model of what the sandbox must hold.
//
// An operation that a kill of the service cut off may have happened or not: the model then has two candidates, and what the sandbox
// holds once the service is back decides between them. Anything else that fails is an error.
import { randomBytes } from "node:crypto";
import type { TestSandbox } from "../conformance/session.ts";
import { type Choices } from "../faults/seed.ts";
import { type Client, eventually } from "../fixtures/client.ts";

/** Everything that a sandbox must hold: files of /root/soak and keys of the store, by name. */
export type Holdings = Readonly<Record<string, string>>;

export interface World {
  client: Client;
  choices: Choices;
  /** Runs what may be cut off by a kill: "cut off" when one came between, else the answer; throws what is an error. */
  attempt<T>(what: string, body: () => Promise<T>): Promise<T | typeof cutOff>;
  isOver(): boolean;
}
export const cutOff = Symbol("cut off by a kill");

const NAMES = 8;
const CHECKPOINTS = 3;
const STATE_MS = 120_000;

interface Seen {
  id: string;
  name: string;
  state: string;
  domain: string;
  error_message: string;
}

export class Life {
  readonly #world: World;
  readonly #label: string;
  #count = 0;
  #sandbox!: TestSandbox;
  #holdings: Holdings = {};
  #checkpoints: { id: string; holdings: Holdings }[] = [];
  readonly done: Record<string, number> = {};

  constructor(world: World, label: string) {
    this.#world = world;
    this.#label = label;
  }

  async run(): Promise<void> {
    await this.#create();
    while (!this.#world.isOver()) await this.#step();
    await this.#verify("at the end");
    await this.#destroy();
  }

  async #step(): Promise<void> {
    const { oneOf } = this.#world.choices;
    const kind = oneOf([
      ...(["exec", "exec", "write", "write", "set", "set", "batch", "look"] as const),
      ...(["checkpoint", "restore", "fork", "suspend", "renew"] as const),
    ] as ["exec", ...string[]]);
    this.done[kind] = (this.done[kind] ?? 0) + 1;
    switch (kind) {
      case "exec":
        return await this.#put(`f-${this.#name()}`, (name, value) =>
          this.#call("POST", "/v1/exec", {
            json: {
              cmd: [
                "sh",
                "-c",
                `printf %s ${value} > /root/soak/.new && mv /root/soak/.new /root/soak/${name.slice(2)}`,
              ],
            },
          }),
        );
      case "write":
        return await this.#put(`f-${this.#name()}`, (name, value) =>
          this.#call("POST", `/v1/files?path=/root/soak/${name.slice(2)}`, { body: Buffer.from(value) }),
        );
      case "set":
        return await this.#put(`k-${this.#name()}`, (name, value) =>
          this.#call("PUT", `/v1/store/${name}`, { json: { value } }),
        );
      case "batch":
        return await this.#batch();
      case "look":
        return await this.#verify("in between");
      case "checkpoint":
        return await this.#checkpoint();
      case "restore":
        return await this.#restore();
      case "fork":
        return await this.#fork();
      case "suspend":
        return await this.#suspend();
      default:
        await this.#destroy();
        return await this.#create();
    }
  }

  #name = (): string => `n${this.#world.choices.below(NAMES)}`;
  readonly #value = (): string => randomBytes(6).toString("hex");

  async #call(
    method: string,
    path: string,
    options: { json?: unknown; body?: Buffer } = {},
  ): Promise<Record<string, unknown>> {
    const { status, body } = await this.#world.client.call(this.#sandbox, method, path, options);
    if (status !== 200)
      throw new Error(`${method} ${path} answered ${status}: ${body.toString().slice(0, 300)}`);
    const answer = JSON.parse(body.toString()) as Record<string, unknown>;
    if (answer["ok"] === false) throw new Error(`${method} ${path}: ${body.toString().slice(0, 300)}`);
    return answer;
  }

  async #put(name: string, write: (name: string, value: string) => Promise<unknown>): Promise<void> {
    const value = this.#value();
    await this.#change({ ...this.#holdings, [name]: value }, `write of ${name}`, () => write(name, value));
  }

  async #batch(): Promise<void> {
    const keys = [...new Set([this.#name(), this.#name(), this.#name()])].map((name) => `k-${name}`);
    const entries = keys.map((key) => [key, this.#value()] as const);
    const operations = entries.map(([key, value]) => ({ op: "set", key, value }));
    await this.#change({ ...this.#holdings, ...Object.fromEntries(entries) }, "batch", () =>
      this.#call("POST", "/v1/store/batch", { json: { operations } }),
    );
  }

  /** Does something after which the sandbox holds `after`. */
  async #change(after: Holdings, what: string, body: () => Promise<unknown>): Promise<void> {
    if ((await this.#world.attempt(what, body)) === cutOff) await this.#settle([this.#holdings, after], what);
    else this.#holdings = after;
  }

  /** What the sandbox holds now must be one of the candidates. */
  async #settle(candidates: readonly Holdings[], what: string): Promise<void> {
    for (;;) {
      const seen = await this.#world.attempt(`look after ${what}`, () => this.#look());
      if (seen === cutOff) continue;
      const found = candidates.find((one) => same(one, seen));
      if (found === undefined)
        throw new Error(
          `${this.#sandbox.id}: ${what}: holds ${text(seen)}, must be ${candidates.map(text).join(" or ")}`,
        );
      this.#holdings = found;
      return;
    }
  }

  #verify(what: string): Promise<void> {
    return this.#settle([this.#holdings], what);
  }

  async #look(): Promise<Holdings> {
    await this.#awake(this.#sandbox.id);
    const { stdout } = (await this.#call("POST", "/v1/exec", {
      json: {
        cmd: [
          "sh",
          "-c",
          'cd /root/soak && for f in *; do [ -f "$f" ] && echo "f-$f $(cat "$f")"; done; true',
        ],
      },
    })) as { stdout: string };
    const seen = stdout
      .split("\n")
      .filter(Boolean)
      .map((line) => line.split(" ") as [string, string]);
    const { keys } = (await this.#call("GET", "/v1/store")) as { keys: string[] };
    for (const key of keys) seen.push([key, String((await this.#call("GET", `/v1/store/${key}`))["value"])]);
    return Object.fromEntries(seen);
  }

  async #checkpoint(): Promise<void> {
    if (this.#checkpoints.length === CHECKPOINTS) {
      const { id } = this.#checkpoints.shift() as { id: string };
      // Cut off: it is deleted with the sandbox's others at the end.
      await this.#world.attempt("delete of a checkpoint", () => this.#call("DELETE", `/v1/checkpoint/${id}`));
    }
    const made = await this.#world.attempt("checkpoint", () => this.#call("POST", "/v1/checkpoint"));
    if (made !== cutOff)
      this.#checkpoints.push({ id: String(made["checkpoint_id"]), holdings: this.#holdings });
  }

  async #restore(): Promise<void> {
    const chosen = this.#checkpoints[this.#world.choices.below(this.#checkpoints.length)];
    if (chosen === undefined) return;
    await this.#change(chosen.holdings, "restore", () =>
      this.#call("POST", "/v1/restore", { json: { checkpoint_id: chosen.id } }),
    );
  }

  async #suspend(): Promise<void> {
    const { client, attempt } = this.#world;
    const { id } = this.#sandbox;
    await attempt("suspend", async () => {
      await client.gateway("SuspendSandbox", { id });
      const asleep = await this.#reaches(id, ["SANDBOX_STATE_SUSPENDED"]);
      if (asleep.state !== "SANDBOX_STATE_SUSPENDED") throw new Error(`suspend: ${text(asleep)}`);
    });
    await this.#verify("after a suspend");
  }

  /** A fork, which takes the place of its source. */
  async #fork(): Promise<void> {
    const source = this.#sandbox.id;
    const made = await this.#make("ForkSandbox", { source_sandbox_id: source });
    if (made === undefined) return await this.#verify("after a fork that was cut off");
    this.#sandbox = made;
    await this.#verify("in the fork");
    this.#checkpoints = [];
    await this.#delete(source);
  }

  async #create(): Promise<void> {
    this.#holdings = {};
    this.#checkpoints = [];
    for (let made: TestSandbox | undefined; made === undefined; ) {
      made = await this.#make("CreateSandbox", {});
      if (made) this.#sandbox = made;
    }
    while (
      (await this.#world.attempt("mkdir", () =>
        this.#call("POST", "/v1/files/mkdir", { json: { path: "/root/soak", parents: true } }),
      )) === cutOff
    );
  }

  /** A new sandbox that runs; undefined when a kill cut it off and nothing of it is there. */
  async #make(method: "CreateSandbox" | "ForkSandbox", fields: object): Promise<TestSandbox | undefined> {
    const { client, attempt } = this.#world;
    const name = `${this.#label}-${(this.#count += 1)}`;
    const made = await attempt(method, () => client.gateway<{ sandbox: Seen }>(method, { ...fields, name }));
    for (;;) {
      const found = await attempt("list", async () => {
        const { sandboxes } = await client.gateway<{ sandboxes: Seen[] }>("ListSandboxes");
        return sandboxes.find((one) => one.name === name && one.state !== "SANDBOX_STATE_DELETING");
      });
      if (found === cutOff) continue;
      if (found === undefined) {
        if (made === cutOff) return undefined;
        throw new Error(`${method}: ${made.sandbox.id} was answered and is gone`);
      }
      const ready = await attempt(`${method}, to run`, async () => {
        const seen = await this.#awake(found.id);
        const { jwt } = await client.gateway<{ jwt: string }>("IssueDataPlaneToken", {
          sandbox_id: found.id,
        });
        return { id: found.id, domain: seen.domain, token: jwt };
      });
      if (ready !== cutOff) return ready;
    }
  }

  async #destroy(): Promise<void> {
    await this.#delete(this.#sandbox.id);
  }

  async #delete(id: string): Promise<void> {
    const { client, attempt } = this.#world;
    const remove = () =>
      client.gateway("DeleteSandbox", { id }).catch((error: unknown) => {
        // One that was cut off may have been done.
        if (!String(error).includes("not_found")) throw error;
      });
    while ((await attempt("delete", remove)) === cutOff);
  }

  async #get(id: string): Promise<Seen> {
    return (await this.#world.client.gateway<{ sandbox: Seen }>("GetSandbox", { id })).sandbox;
  }

  #reaches(id: string, states: readonly string[]): Promise<Seen> {
    return eventually(
      () => this.#get(id),
      ({ state }) => states.includes(state) || state === "SANDBOX_STATE_ERROR",
      STATE_MS,
    );
  }

  /** RUNNING, woken where it is suspended. */
  async #awake(id: string): Promise<Seen> {
    let seen = await this.#reaches(id, ["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDED"]);
    if (seen.state === "SANDBOX_STATE_SUSPENDED") {
      await this.#world.client.gateway("ResumeSandbox", { id });
      seen = await this.#reaches(id, ["SANDBOX_STATE_RUNNING"]);
    }
    if (seen.state !== "SANDBOX_STATE_RUNNING") throw new Error(`not RUNNING: ${text(seen)}`);
    return seen;
  }
}

const same = (one: Holdings, other: Holdings): boolean => text(one) === text(other);
const text = (value: object): string => JSON.stringify(Object.entries(value).sort());
