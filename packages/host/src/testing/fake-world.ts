/**
 * A fake computer for a host, in memory and a temporary directory, for tests of faults and crashes. It outlives the hosts on it.
 * At every effect (a driver's call, a clone, an agent's answer, a journal write) a test can make it fail, before or after it
 * took effect, or "kill" the host: everything that the host was doing then hangs for ever.
 */
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import type { IncomingMessage } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { randomBytes } from "node:crypto";
import {
  channelKeyOf,
  type Clock,
  type Log,
  preSharedKeyOf,
  type SagaRecord,
  silentLog,
  systemClock,
} from "@cloche/base";
import { channel, ClocheError } from "@cloche/protocol";
import type { BlobStore } from "../blob/blob-store.ts";
import { openDirectoryStore } from "../blob/directory-store.ts";
import {
  type SnapshotHooks,
  ImageMismatchError,
  type MachineDriver,
  type MachineFiles,
  type ReadyHooks,
  type ReadyIdentity,
  type RunningMachine,
  type SnapshotFiles,
  snapshotDisk,
} from "../drivers/driver.ts";
import type { Native } from "../sys/native.ts";
import { createHost, type Host } from "../create-host.ts";
import type { ClusterParts } from "../host-parts.ts";
import { mortalGateways } from "./fake-cluster.ts";
import { FileJournal, type HostJournal } from "../operations/journal.ts";

/** The memory of a fake machine's agent. The disk is a text file. */
interface Memory {
  secret: string;
  assignedTo: string;
  counter: number;
  services: string[];
  attached: boolean;
}

interface FakeMachine {
  id: string;
  memory: Memory;
  disk: string;
  paused: boolean;
  server: Server;
  port: number;
}

export type FaultMode = "before" | "after" | "kill-before" | "kill-after";

export class FakeWorld {
  readonly dir: string;
  readonly machines = new Map<string, FakeMachine>();
  /** Machines whose agents begin each answer and never complete it. */
  readonly hanging = new Set<string>();
  clock: Clock = systemClock;
  log: Log = silentLog;
  /** Names of the effects so far, in order. */
  readonly effects: string[] = [];
  /** What every driver keeps ready: a machine, or a memory for a fresh disk. */
  keeps: "machine" | "disk" | undefined;
  /** If true, no memory can be restored. */
  imagesAreLost = false;
  /** Set before `start` to put the host into a cluster, with its storage in `blobsDir`. */
  cluster: ClusterParts | undefined;
  blobsDir: string;
  /** Kind of processor: memory saved by another kind cannot be restored. */
  memoryClass = "cpu-1";
  /** The machine that `makeAhead` made and assigned. */
  #ahead: { machine: FakeMachine; identity: ReadyIdentity } | undefined;
  #hooks: ReadyHooks | undefined;
  #onExit: (id: string, reason: string) => void = () => undefined;
  /** Names of effects that fail while they are in this set. */
  readonly failing = new Set<string>();
  /** The fault happens at the effect of this number, counted since it was set. */
  #fault: { at: number; mode: FaultMode } | undefined;
  #count = 0;
  #sagas: FileJournal | undefined;
  /** Copies of disks, until they are synced. */
  readonly #notDurable = new Set<string>();
  #generation = 0;
  #killed: (() => void) | undefined;
  host!: Host;

  constructor(dir: string) {
    this.dir = dir;
    this.blobsDir = join(dir, "blobs");
  }

  static async open(): Promise<FakeWorld> {
    return new FakeWorld(await mkdtemp(join(tmpdir(), "cloche-world-")));
  }

  get poolDir(): string {
    return join(this.dir, "pool");
  }

  /** The next `at`-th effect (0: the very next) fails, or the host is killed at it. */
  fault(at: number, mode: FaultMode): void {
    this.#count = 0;
    this.#fault = { at, mode };
  }

  /** Counts effects from now on, without a fault. */
  countEffects(): void {
    this.#count = 0;
    this.#fault = undefined;
  }
  get effectCount(): number {
    return this.#count;
  }

  /** Resolves when the host is killed by a fault. */
  get killed(): Promise<void> {
    return new Promise((resolve) => {
      this.#killed = resolve;
    });
  }

  /** Runs one effect of a host. An effect of a killed host never resolves. */
  async #effect<T>(generation: number, name: string, body: () => T | Promise<T>): Promise<T> {
    const dead = (): boolean => generation !== this.#generation;
    if (dead()) return never();
    const mode = this.#fault && this.#count === this.#fault.at ? this.#fault.mode : undefined;
    this.#count += 1;
    this.effects.push(name);
    if (mode === "before" || this.failing.has(name))
      throw new ClocheError("unavailable", `${name} failed before it took effect`);
    if (mode === "kill-before") return this.#kill();
    const value = await body();
    if (dead()) return never();
    if (mode === "after") throw new ClocheError("unavailable", `${name} failed after it took effect`);
    if (mode === "kill-after") return this.#kill();
    return value;
  }

  /** Makes a machine ahead, and offers it under the answered identity. */
  async makeAhead(): Promise<ReadyIdentity> {
    if (this.#ahead) await end(this.#ahead.machine);
    const files = { id: `ahead-${randomBytes(4).toString("hex")}`, dir: "", diskImage: "" };
    const memory = { ...newMemory(), attached: true };
    const machine = await this.#begin(files, memory, this.#generation);
    const agent = { agentHost: "127.0.0.1", agentPort: machine.port };
    const identity = (await this.#hooks?.assign(agent, memory.secret)) as ReadyIdentity;
    this.machines.delete(files.id);
    this.#ahead = { machine, identity };
    files.id = identity.sandboxId;
    return identity;
  }

  #kill(): Promise<never> {
    this.#generation += 1;
    this.#fault = undefined;
    this.#killed?.();
    return never();
  }

  /** The machine's process ends by itself. */
  async crash(id: string, reason: string): Promise<void> {
    const machine = this.machines.get(id);
    this.machines.delete(id);
    if (machine) await end(machine);
    this.#onExit(id, reason);
  }

  /** Ends everything that runs, as in a power cut; disks stay, but copies that are not durable yet. */
  async reboot(): Promise<void> {
    this.#generation += 1;
    for (const machine of this.machines.values()) await end(machine);
    this.machines.clear();
    if (this.#ahead) await end(this.#ahead.machine);
    this.#ahead = undefined;
    for (const path of this.#notDurable) await rm(path, { force: true });
    this.#notDurable.clear();
    await rm(join(this.dir, "run"), { recursive: true, force: true });
  }

  /** Starts a host, like a start of the service. */
  async start(): Promise<Host> {
    const generation = (this.#generation += 1);
    this.#fault = undefined;
    await mkdir(this.poolDir, { recursive: true });
    const native = {
      clone: (from: string, to: string, { durable = true } = {}) =>
        this.#effect(generation, "clone", async () => {
          await copyFile(from, to);
          if (!durable) this.#notDurable.add(to);
        }),
      syncFile: (path: string) =>
        this.#effect(generation, "syncFile", async () => void this.#notDurable.delete(path)),
      extents: async () => ({ count: 1, allocatedBytes: 1, exclusiveBytes: 1 }),
      chunkMap: async (image: string, _base: string | undefined, out: string, chunkBytes: number) => {
        const { length } = await readFile(image);
        await writeFile(out, "d".repeat(Math.ceil(length / chunkBytes)));
        return Math.ceil(length / chunkBytes);
      },
    } as unknown as Native;
    const template = join(this.dir, "template");
    await writeFile(template, "fresh");
    this.host = createHost({
      poolDir: this.poolDir,
      runDir: join(this.dir, "run"),
      drivers: new Map([["gvisor", this.#driver(generation)]]),
      templates: { key: "t", ofSize: async () => template },
      native,
      blobs: await this.#blobs(generation),
      ...(this.cluster && { cluster: this.#mortal(this.cluster, generation) }),
      journal: this.#journal(generation),
      dnsServers: [],
      egress: {
        setEgressOf: async () => {},
        reportOf: async () => ({ deniedPackets: 0, deniedNames: 0, recent: [] }),
        traffic: async () => new Map(),
      },
      clock: this.clock,
      log: this.log,
      randomBytes,
    });
    await this.host.start();
    return this.host;
  }

  /** Reading is an effect where it belongs to an operation: on a single machine none reads from storage. */
  /** The cluster's parts for a host that may be killed: then gateways hear nothing more of it. */
  #mortal(cluster: ClusterParts, generation: number): ClusterParts {
    return { ...cluster, gateways: mortalGateways(cluster, () => generation === this.#generation) };
  }

  async #blobs(generation: number): Promise<BlobStore> {
    const store = await openDirectoryStore(this.blobsDir);
    if (this.cluster === undefined) return store;
    return {
      put: (key, data) => (generation === this.#generation ? store.put(key, data) : never()),
      get: (key, range) => this.#effect(generation, "blob get", () => store.get(key, range)),
      delete: (key) => store.delete(key),
      list: (prefix) => store.list(prefix),
    };
  }

  async close(): Promise<void> {
    await this.host.stop({ suspend: false });
    await this.reboot();
    await rm(this.dir, { recursive: true, force: true });
  }

  #journal(generation: number): HostJournal {
    const files = new FileJournal(join(this.dir, "run", "journal", "sagas"));
    this.#sagas = files;
    return {
      open: () => files.open(),
      close: () => files.close(),
      pending: () => files.pending(),
      save: (record: SagaRecord<unknown>) =>
        this.#effect(generation, `journal ${record.kind} ${record.begun.at(-1)}`, () => files.save(record)),
      remove: (id) => this.#effect(generation, "journal done", () => files.remove(id)),
    };
  }

  // oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
  #driver(generation: number): MachineDriver {
    const effect = <T>(name: string, body: () => T | Promise<T>): Promise<T> =>
      this.#effect(generation, `driver ${name}`, body);
    const living = (files: MachineFiles): FakeMachine => {
      const machine = this.machines.get(files.id);
      if (!machine) throw new ClocheError("failed_precondition", `machine ${files.id} does not run`);
      return machine;
    };
    const boot = async (files: MachineFiles, memory: Memory): Promise<RunningMachine> => {
      await readFile(files.diskImage);
      const machine = await this.#begin(files, memory, generation);
      return {
        id: files.id,
        agentHost: "127.0.0.1",
        agentPort: machine.port,
        bootstrapSecret: memory.assignedTo === "" ? memory.secret : undefined,
        blockDevice: undefined,
      };
    };
    const stop = async (files: MachineFiles): Promise<void> => {
      const machine = this.machines.get(files.id);
      this.machines.delete(files.id);
      if (machine) await end(machine);
    };
    return {
      runtime: "gvisor",
      probe: async () => undefined,
      start: async (hooks) => {
        this.#hooks = hooks;
        if (this.#ahead) await end(this.#ahead.machine);
        this.#ahead = undefined;
      },
      stop: async () => undefined,
      create: (files) =>
        effect("create", async () => {
          await stop(files);
          return boot(files, newMemory());
        }),
      ready: {
        claim: async (files, _resources, given) => {
          if (this.keeps !== "machine" && this.#ahead === undefined) return undefined;
          return effect("claimReady", async () => {
            await stop(files);
            const ahead = this.#ahead;
            if (ahead?.identity.sandboxId === files.id) {
              await writeFile(files.diskImage, "fresh");
              this.#ahead = undefined;
              this.machines.set(files.id, { ...ahead.machine, id: files.id, disk: files.diskImage });
              const { secret, assignment } = ahead.identity;
              const address = { agentHost: "127.0.0.1", agentPort: ahead.machine.port };
              const machine = { id: files.id, ...address, bootstrapSecret: secret, blockDevice: undefined };
              await given(machine);
              return { ...machine, assignment };
            }
            if (this.keeps !== "machine") return undefined;
            await writeFile(files.diskImage, "fresh");
            const machine = await boot(files, { ...newMemory(), attached: true });
            await given(machine);
            return machine;
          });
        },
        freshDisk: async (files) => {
          if (this.keeps !== "disk") return false;
          await effect("freshDisk", () => writeFile(files.diskImage, "fresh"));
          return true;
        },
        counts: () => ({}),
        wanted: () => ({}),
      },
      adopt: async (files) => {
        const machine = this.machines.get(files.id);
        if (!machine) return undefined;
        return {
          id: files.id,
          agentHost: "127.0.0.1",
          agentPort: machine.port,
          bootstrapSecret: undefined,
          blockDevice: undefined,
        };
      },
      checkpointDisk: async (files, toImage, hooks: SnapshotHooks) => {
        await hooks.flush();
        await effect("checkpointDisk", () => copyFile(living(files).disk, toImage));
        return { pauseMs: 1 };
      },
      swapDisk: async (files, toImage, hooks) => {
        await hooks.detachDisk();
        await effect("swapDisk", async () => {
          await readFile(toImage);
          living(files).disk = toImage;
        });
      },
      snapshot: async (files, into, { stop: stays }, hooks) => {
        await hooks.flush();
        await effect("snapshot", async () => {
          const machine = living(files);
          // Larger than the files that are stored in the description itself.
          await writeFile(join(into.dir, "memory"), JSON.stringify(machine.memory).padEnd(32 * 1024));
          await writeFile(join(into.dir, "made-with"), this.memoryClass);
          await copyFile(machine.disk, snapshotDisk(into));
          machine.paused = stays;
        });
        return { pauseMs: 1 };
      },
      unblock: (files) =>
        effect("unblock", () => {
          const machine = this.machines.get(files.id);
          if (machine) machine.paused = false;
        }),
      memoryClass: async (from) =>
        from === undefined ? this.memoryClass : await readFile(join(from.dir, "made-with"), "utf8"),
      requireRestorable: async ({ dir }) => {
        if ((await readFile(join(dir, "made-with"), "utf8")) !== this.memoryClass)
          throw new ImageMismatchError(
            "the memory was saved on another kind of processor than this host has",
          );
        if (this.imagesAreLost) throw new ImageMismatchError("the memory image is damaged");
      },
      restore: (files, from: SnapshotFiles) =>
        effect("restore", async () => {
          await stop(files);
          return boot(files, JSON.parse(await readFile(join(from.dir, "memory"), "utf8")) as Memory);
        }),
      stats: async () => ({ cpuMs: 0, memoryBytes: 0, processes: 1 }),
      onExit: (listener) => {
        this.#onExit = listener;
      },
      endNow: stop,
      stopMachine: (files) => effect("stopMachine", () => stop(files)),
      destroy: (files) => effect("destroy", () => stop(files)),
      sweep: async (keep) => {
        const lost = [...this.machines.keys()].filter((id) => !keep.has(id));
        for (const id of lost) await stop({ id, dir: "", diskImage: "" });
        return lost;
      },
    };
  }

  async #begin(files: MachineFiles, memory: Memory, generation: number): Promise<FakeMachine> {
    const secretNow = (): string => (this.machines.get(files.id)?.memory ?? memory).secret;
    const secure = {
      ciphers: channel.cipher,
      minVersion: "TLSv1.3" as const,
      pskCallback: () => preSharedKeyOf(channelKeyOf(secretNow())),
    };
    const server = createServer(secure, (request, response) => {
      void (async () => {
        const body = await bodyOf(request);
        const method = request.url?.split("/").at(-1) ?? "";
        const machine = this.machines.get(files.id);
        if (!machine || machine.paused) return; // no answer, ever
        if (this.hanging.has(files.id)) {
          response.writeHead(200, { "content-length": 1_000 });
          response.write("{");
          return;
        }
        const secret = /^Bearer (.*)$/.exec(request.headers.authorization ?? "")?.[1];
        if (secret !== machine.memory.secret) {
          response.statusCode = 401;
          response.end(JSON.stringify({ code: "unauthenticated", message: "wrong secret" }));
          return;
        }
        try {
          // Counts as an effect of the present host, whichever host asks.
          const answer = await this.#effect(this.#generation, `agent ${method}`, () =>
            agentAnswer(machine, method, body),
          );
          response.end(JSON.stringify(answer));
        } catch (error) {
          response.statusCode = 503;
          response.end(JSON.stringify(ClocheError.from(error).toBody()));
        }
      })();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const machine = { id: files.id, memory, disk: files.diskImage, paused: false, server, port };
    if (generation !== this.#generation) {
      await end(machine);
      return never();
    }
    this.machines.set(files.id, machine);
    return machine;
  }

  /** Files on the pool, and machines, that belong to no record of `ids`. */
  async orphans(ids: ReadonlySet<string>): Promise<string[]> {
    const found: string[] = [];
    for (const name of await readdir(join(this.poolDir, "machines")).catch(() => []))
      if (!ids.has(name)) found.push(`directory ${name}`);
    for (const name of await readdir(join(this.poolDir, "snapshots")).catch(() => []))
      found.push(`snapshot ${name}`);
    for (const { id } of (await this.#sagas?.pending()) ?? []) found.push(`journal ${id}`);
    for (const id of this.machines.keys()) if (!ids.has(id)) found.push(`machine ${id}`);
    return found;
  }
}

function agentAnswer(machine: FakeMachine, method: string, body: Record<string, unknown>): object {
  const { memory } = machine;
  switch (method) {
    case "Assign":
      memory.assignedTo = String(body["sandboxId"]);
      memory.secret = String(body["controlSecret"]);
      memory.attached = true;
      return { agentVersion: "0" };
    case "PrepareCheckpoint":
      return { runningServices: memory.services };
    case "PrepareSnapshot":
      return { blockingPaths: [] };
    case "DetachDisk": {
      const ran = memory.services;
      memory.services = [];
      memory.attached = false;
      return { runningServices: ran };
    }
    case "AttachDisk":
      if (memory.attached) throw new ClocheError("failed_precondition", "a disk is attached");
      memory.attached = true;
      memory.services = (body["startServices"] as string[] | undefined) ?? [];
      return { startedServices: memory.services };
    case "Shutdown":
      memory.services = [];
      memory.attached = false;
      return {};
    default:
      return {};
  }
}

async function bodyOf(request: IncomingMessage): Promise<Record<string, unknown>> {
  let text = "";
  for await (const chunk of request) text += String(chunk);
  return JSON.parse(text || "{}") as Record<string, unknown>;
}

const newMemory = (): Memory => ({
  secret: randomBytes(8).toString("hex"),
  assignedTo: "",
  counter: 0,
  services: [],
  attached: false,
});

function end(machine: FakeMachine): Promise<void> {
  machine.server.closeAllConnections();
  return new Promise((resolve) => machine.server.close(() => resolve()));
}

const never = (): Promise<never> => new Promise(() => undefined);
