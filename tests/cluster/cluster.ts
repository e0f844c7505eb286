// What the files of the part do with the lab in few words.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, inject } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { tagOf } from "../fixtures/inventory.ts";
import { EDGES, GATEWAYS, HOSTS, Lab } from "../lab/lab.ts";

/** As the gateway answers it. */
export interface Seen {
  id: string;
  state: string;
  error_message: string;
  durable?: boolean;
}

/** Sandboxes that share a host with another until each host has one. */
const MORE_MAX = 12;

export interface Placed {
  host: string;
  box: TestSandbox;
}

export class Cluster {
  readonly lab: Lab = Lab.found(inject("lab"));
  /** One an edge; their gateway calls go to gateways in turn. */
  clients: Client[] = [];

  get client(): Client {
    const [first] = this.clients;
    if (first === undefined) throw new Error("the cluster has no clients yet");
    return first;
  }

  open(): void {
    this.clients = EDGES.map((edge, index) => this.through(GATEWAYS[index % GATEWAYS.length] ?? "g1", edge));
  }

  /** A client of its own for this gateway and edge; `close` it. */
  through(gateway: string, edge = "e1"): Client {
    return new Client(this.lab.target(gateway, edge));
  }

  /** The host that the record names; "" for none. */
  async hostOf({ id }: { id: string }): Promise<string> {
    const [host = ""] = await this.lab.sql(`select host_id from sandboxes where id = '${id}'`);
    return host;
  }

  /** Makes sandboxes until there is one on each host: the first of each. */
  async oneOnEach(fields: Record<string, unknown> = {}): Promise<[Placed, ...Placed[]]> {
    const found = new Map<string, TestSandbox>();
    const more: TestSandbox[] = [];
    while (found.size < HOSTS.length) {
      if (more.length === MORE_MAX) throw new Error(`sandboxes lie on ${[...found.keys()].join(", ")} only`);
      const box = await this.client.create({ memory_mb: 256, ...fields });
      const host = await this.hostOf(box);
      if (found.has(host)) more.push(box);
      else found.set(host, box);
    }
    // Only now: placement prefers where least is reserved.
    for (const { id } of more) await this.client.session.discard(id);
    return [...found].map(([host, box]) => ({ host, box })) as [Placed, ...Placed[]];
  }

  async get({ id }: { id: string }, client = this.client): Promise<Seen> {
    return (await client.gateway<{ sandbox: Seen }>("GetSandbox", { id })).sandbox;
  }

  /** Waits until the checkpoint is whole in storage. */
  async visible(checkpoint: string): Promise<void> {
    const look = async () => {
      type List = { checkpoints: { id: string; visible: boolean }[] };
      const { checkpoints } = await this.client.gateway<List>("ListCheckpoints", {});
      return checkpoints.find(({ id }) => id === checkpoint)?.visible ?? false;
    };
    expect(await eventually(look, Boolean, 60_000)).toBe(true);
  }

  async close(): Promise<void> {
    for (const client of this.clients) await client.close();
  }
}

/** The part's lab: whole before each test, whatever the one before it broke. */
export function theCluster(): Cluster {
  const cluster = new Cluster();
  beforeEach(() => cluster.open());
  afterEach(async () => {
    await cluster.lab.mend();
    await cluster.close();
  });
  return cluster;
}

/** A program in a sandbox that counts, five times a second. It is the same as before when its pid is and its count went on. */
export class Counter {
  readonly #box: TestSandbox;
  readonly #pid: number;
  #count: number;

  private constructor(box: TestSandbox, pid: number, count: number) {
    this.#box = box;
    this.#pid = pid;
    this.#count = count;
  }

  static async start(client: Client, box: TestSandbox): Promise<Counter> {
    const line =
      "i=0; while sleep 0.2; do i=$((i+1)); echo $$ $i > /root/new; mv /root/new /root/count; done";
    await client.shell(box, `setsid sh -c '${line}' >/dev/null 2>&1 </dev/null &`);
    const [pid = 0, count = 0] = await eventually(
      () => read(client, box),
      ([, seen]) => seen !== undefined,
    );
    return new Counter(box, pid, count);
  }

  /** Fails unless it goes on where it was. */
  async expectSame(client: Client): Promise<void> {
    const seen = await eventually(
      () => read(client, this.#box),
      ([, count = 0]) => count > this.#count,
      10_000,
    );
    const [pid, count = 0] = seen;
    expect(pid).toBe(this.#pid);
    expect(count).toBeGreaterThan(this.#count);
    // It is in memory alone: a program that began anew would count from one.
    this.#count = count;
  }
}

/** Nothing while the edge has not heard yet that the sandbox runs: it may hear it from the gateway that did not resume it. */
async function read(client: Client, box: TestSandbox): Promise<number[]> {
  const { status, body } = await client.call(box, "POST", "/v1/exec", {
    json: { cmd: ["cat", "/root/count"] },
  });
  if (status === 503) return [];
  if (status !== 200) throw new Error(`exec answered ${status}: ${body.toString()}`);
  const { stdout } = JSON.parse(body.toString()) as { stdout: string };
  return stdout.split(" ").filter(Boolean).map(Number);
}

/** Ids of the machines whose processes the host of this home has, by what its driver noted. */
export function machinesOn(home: string): { id: string; unit: string }[] {
  const units = join("/run", `cloche-${tagOf(home)}`, "gvisor", "units");
  if (!existsSync(units)) return [];
  return readdirSync(units).flatMap((unit) => {
    try {
      const note = JSON.parse(readFileSync(join(units, unit, "unit.json"), "utf8")) as { machineId?: string };
      return note.machineId ? [{ id: note.machineId, unit }] : [];
    } catch {
      // It came or went just then.
      return [];
    }
  });
}
