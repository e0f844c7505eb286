// One runsc sandbox: its bundle, its keeper, its slot directory, its cgroup, its network slot.
// Owns <runDir>/units/<name>/ (unit.json, bundle, runsc state, logs), <runDir>/slots/<name>/ and the cgroup of that name.
//
//   make ──▶ blank (runsc create: no agent yet) ──start──▶ running (agent booted cold)
//                   │                          └─restore─▶ running (agent out of a memory image)
//                   ▼                                        │ its process ends: the keeper writes `exit`
//                destroy (from any state, repeatable) ◀──────┘
//
// Called by the gVisor driver only. Survives the service: the processes (children of the keeper, not ours) and unit.json.
// After a reboot nothing is left: runDir lies on a tmpfs.
import { existsSync, renameSync, writeFileSync } from "node:fs";
import { mkdir, readFile, rename, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { readJsonFile } from "@cloche/base";
import { firstReleaseAgentPort } from "@cloche/protocol";
import { attachDisk, detachDisk, writeBackDisk } from "../../disk/disk.ts";
import type { Native } from "../../sys/native.ts";
import { mountAt } from "../../sys/mounts.ts";
import type { AgentAddress, RunningMachine, SnapshotTimes } from "../driver.ts";
import { Cgroup, type CgroupLimits, type CpuWeight } from "../cgroup.ts";
import type { Standstill } from "../driver.ts";
import type { NetworkLease } from "../network-slots.ts";
import { identify, isAlive, type ProcessIdentity } from "../process-identity.ts";
import { type AgentRoot, writeBundle } from "./bundle.ts";
import { Keeper, type KeeperFiles } from "./keeper.ts";
import { isReadInBackground } from "./large-image.ts";
import { SentryControl } from "./sentry-control.ts";
import { leastShape, limitsOf } from "./unit-limits.ts";

/** An agent listens within this time, booted or out of a memory image. */
export const AGENT_START_MS = 60_000;
export const AGENT_RESTORE_MS = 60_000;

/** What every unit of one driver shares. */
export interface UnitEnvironment {
  /** Instance tag: names the cgroup root. */
  tag: string;
  /** On a tmpfs, short: the control socket's path must stay below 108 bytes. */
  runDir: string;
  runsc: string;
  keeper: string;
  native: Native;
  agentRoot: AgentRoot;
  /** Absent: never. */
  standstill?: Standstill;
}

export interface UnitRecord {
  name: string;
  slot: number;
  /** Absent until runsc create returned. */
  keeper?: ProcessIdentity;
  sandbox?: ProcessIdentity;
  limits: CgroupLimits;
  /** Root that the agent in it runs from: an upgrade brings a new one, but a memory image needs its own. */
  agentRootDir: string;
  /**
   * Of its sentry, which a release that comes later adopts with the machine: the memory that it saves is of this version.
   * Absent: made by a release that did not note it.
   */
  runscVersion?: string;
  /** Where its agent listens. Absent: the port of the first release. */
  agentPort?: number;
  /** Machine it was given to. */
  machineId?: string;
  /** Disk image at slot/disk. */
  disk?: string;
}

// Measured: systrap is the fast platform without KVM; directfs spares the gofer most calls.
const RUNSC_FLAGS =
  "--platform=systrap --network=sandbox --overlay2=none --host-uds=none --file-access=exclusive --directfs=true --net-disconnect-ok --allow-suid --restore-spec-validation=warning".split(
    " ",
  );
/** Memory is written at disk speed: this is for the largest. */
const SNAPSHOT_DEADLINE_MS = 600_000;
const SIGKILL = 9;
/** A save that a crash of the service left under way is waited for. A sentry that hangs never answers. */
const RESUME_DEADLINE_MS = 120_000;
/** Of a storm of 1,300 processes 1 s. */
const PAUSE_DEADLINE_MS = 30_000;
const KEEPER_END_TRIES = 400;
const KEEPER_END_PAUSE_MS = 5;

export class Unit {
  readonly #environment: UnitEnvironment;
  readonly record: UnitRecord;
  readonly lease: NetworkLease;
  readonly cgroup: Cgroup;
  #isFrozen = false;
  #taking = 0;
  /** While `whilePaused` goes on. */
  #held: Promise<void> | undefined;

  constructor(environment: UnitEnvironment, record: UnitRecord, lease: NetworkLease) {
    this.#environment = environment;
    this.record = record;
    this.lease = lease;
    this.cgroup = new Cgroup(unitCgroup(environment, record.name));
  }

  get #dir(): string {
    return unitDir(this.#environment, this.record.name);
  }
  get slotDir(): string {
    return slotDir(this.#environment, this.record.name);
  }
  get mountPoint(): string {
    return join(this.slotDir, "disk");
  }
  get exitFile(): string {
    return join(this.#dir, "exit");
  }
  get directory(): string {
    return this.#dir;
  }
  /** Where its agent listens. */
  get agent(): AgentAddress {
    const { agentPort = firstReleaseAgentPort } = this.record;
    return { agentHost: this.lease.agentHost, agentPort, channel: 1 };
  }
  /** The sentry's control socket. */
  get socket(): string {
    return join(this.#dir, "r", `runsc-${this.record.name}.sock`);
  }
  /** Exists while the machine is paused: by a snapshot, or by `whilePaused`. */
  get #pausedMarker(): string {
    return join(this.#dir, "paused");
  }
  get #bundle(): string {
    return join(this.#dir, "bundle");
  }

  #runsc(...args: string[]): string[] {
    const { runsc, runDir } = this.#environment;
    return [
      runsc,
      `--root=${join(this.#dir, "r")}`,
      `--shared-root=${sharedRoot(runDir)}`,
      ...RUNSC_FLAGS,
      ...args,
    ];
  }
  get #keeperFiles(): KeeperFiles {
    return {
      pidFile: join(this.#dir, "keeper.pid"),
      exitFile: this.exitFile,
      outFile: join(this.#dir, "out.log"),
    };
  }
  get #keeper(): Keeper {
    return new Keeper(this.#environment.keeper, this.#environment.native);
  }
  get #reportFile(): string {
    return join(this.#dir, "report");
  }

  /** The agent's memory alone into `imageDir`; the unit stays paused for good. */
  async saveMemory(imageDir: string): Promise<void> {
    await this.#keeper.report(["save", this.socket, imageDir], this.#reportFile, SNAPSHOT_DEADLINE_MS);
  }

  /** Notes the record, so that the next start finds what we have. On a tmpfs. */
  save(): void {
    const path = join(this.#dir, "unit.json");
    writeFileSync(`${path}.new`, JSON.stringify(this.record), { mode: 0o600 });
    renameSync(`${path}.new`, path);
  }

  /** Boots the sentry, without an agent in it. */
  async make(weight: CpuWeight): Promise<void> {
    const { name, limits } = this.record;
    await mkdir(join(this.#dir, "r"), { recursive: true, mode: 0o700 });
    await mkdir(this.mountPoint, { recursive: true, mode: 0o755 });
    this.save();
    await writeBundle(this.#bundle, {
      agentRoot: { ...this.#environment.agentRoot, dir: this.record.agentRootDir },
      slotDir: this.slotDir,
      cgroupsPath: unitCgroup(this.#environment, name),
      namespacePath: this.lease.namespacePath,
      limits,
      weight,
    });
    const command = this.#runsc("create", "--bundle", this.#bundle, name);
    const pid = await this.#keeper.keep(command, this.#keeperFiles);
    const keeper = await identify(pid);
    const sandbox = await this.#sandboxProcess();
    if (!keeper || !sandbox) throw new Error(`unit ${name} ended right after its creation`);
    this.record.keeper = keeper;
    this.record.sandbox = sandbox;
    await this.cgroup.isolate(sandbox.pid);
    this.save();
  }

  async #sandboxProcess(): Promise<ProcessIdentity | undefined> {
    const state = (await readJsonFile(
      join(this.#dir, "r", `${this.record.name}_sandbox:${this.record.name}.state`),
    )) as { sandbox?: { pid?: number } } | undefined;
    const pid = state?.sandbox?.pid;
    return pid === undefined ? undefined : identify(pid);
  }

  /** Starts the agent cold. */
  async start(): Promise<void> {
    await this.#keeper.run(this.#runsc("start", this.record.name), this.#keeperFiles);
  }

  /** The agent out of a memory image: the files of `snapshot`. */
  async restore(imageDir: string): Promise<void> {
    const command = ["restore", "--detach", "--bundle", this.#bundle, "--image-path", imageDir];
    if (await isReadInBackground(imageDir)) command.push("--background");
    await this.#keeper.run(this.#runsc(...command, this.record.name), this.#keeperFiles);
  }

  /** Memory into `imageDir`, the disk cloned to `diskClone`, at one instant. `template`: the image is as small as it can be. */
  async snapshot(
    imageDir: string,
    diskClone: string,
    options: { stop: boolean; template?: boolean },
  ): Promise<SnapshotTimes> {
    const disk = this.record.disk;
    if (disk === undefined) throw new Error(`unit ${this.record.name} has no disk`);
    const { stop, template = false } = options;
    const flags = [...(stop ? ["--stop"] : []), ...(template ? ["--template"] : [])];
    const places = [this.socket, imageDir, this.mountPoint, disk, diskClone, this.#pausedMarker];
    const args = ["snapshot", ...places, ...flags];
    return { pauseMs: pauseMsOf(await this.#whileTaken(args)) };
  }

  /** As the machine that it has become. */
  asMachine(id: string, secret: string | undefined): RunningMachine {
    return { id, ...this.agent, bootstrapSecret: secret, blockDevice: undefined };
  }

  /** What is dirty goes to the disk, while everything runs on. */
  writeBackDisk(): Promise<void> {
    return writeBackDisk(this.#environment.native, this.mountPoint);
  }

  /** The disk alone, at one instant. Answers how many milliseconds the sandbox stood still. */
  async cloneDisk(to: string): Promise<number> {
    const disk = this.record.disk;
    if (disk === undefined) throw new Error(`unit ${this.record.name} has no disk`);
    const args = ["checkpoint", this.socket, this.mountPoint, disk, to, this.#pausedMarker];
    return pauseMsOf(await this.#whileTaken(args));
  }

  /** Frozen, it takes no processor; it goes on where it was. */
  async freeze(frozen: boolean): Promise<void> {
    if (frozen) await this.#held;
    const { sandbox } = this.record;
    if (frozen && sandbox) await this.cgroup.isolate(sandbox.pid);
    if (frozen) this.#isFrozen = true;
    await this.cgroup.freeze(frozen);
    this.#isFrozen = frozen;
  }

  /** So that the guard of a lease can freeze it: a machine that an earlier release made lacks the groups. Repeatable. */
  async isolate(): Promise<void> {
    const { sandbox } = this.record;
    if (sandbox) await this.cgroup.isolate(sandbox.pid);
  }

  /** After a crash of the service in the middle of a snapshot: neither stopped nor frozen. Harmless otherwise. */
  async unblock(): Promise<void> {
    await this.freeze(false).catch(() => undefined);
    const args = ["resume", this.socket, this.#pausedMarker];
    await this.#keeper.report(args, this.#reportFile, RESUME_DEADLINE_MS);
  }

  async attachDisk(image: string): Promise<void> {
    this.record.disk = image;
    this.save();
    await attachDisk(this.#environment.native, image, this.mountPoint);
  }

  /** The attached image has another name from here on; on the same file system. */
  async renameDisk(to: string): Promise<void> {
    await rename(this.record.disk ?? "", to);
    this.record.disk = to;
    this.save();
  }

  /**
   * Puts another image under the living sandbox, whose users are gone. The sentry still holds directories of the old disk in
   * its cache until it next looks there, so that one is unmounted lazily and could not be attached again right away: what
   * may fail (mounting the new image) is done before, beside the slot. When it throws, the old disk is still there.
   * Repeatable, also where a crash cut it off.
   */
  async replaceDisk(image: string): Promise<void> {
    const { native } = this.#environment;
    const staging = join(this.#dir, "disk");
    await mkdir(staging, { recursive: true });
    if ((await this.#imageInSlot()) !== image) {
      await attachDisk(native, image, staging);
      try {
        await detachDisk(native, this.mountPoint, { lazy: true });
        const argv: [string, ...string[]] = ["mount", "--bind", staging, this.mountPoint];
        const { exitCode } = await native.exec({ argv });
        if (exitCode !== 0) throw new Error(`${argv.join(" ")}: exit code ${exitCode}`);
      } finally {
        await detachDisk(native, staging);
      }
    }
    this.record.disk = image;
    this.save();
  }

  async #imageInSlot(): Promise<string | undefined> {
    const source = (await mountAt(this.mountPoint))?.source;
    if (source === undefined) return undefined;
    const file = `/sys/block/${basename(source)}/loop/backing_file`;
    return (await readFile(file, "utf8").catch(() => undefined))?.trimEnd();
  }

  /** Its agent does not answer because of us: it is frozen, or its memory or disk is being taken. */
  get standsStill(): boolean {
    return this.#isFrozen || this.#taking > 0 || (this.#environment.standstill?.isOn() ?? false);
  }

  /**
   * Pauses it, lets `act` talk to its sentry, and lets it go on whatever happened; where the service ends in between, `unblock` does.
   * Answers undefined where it stands still already: nothing was done.
   */
  async whilePaused<Done>(act: (sentry: SentryControl) => Promise<Done>): Promise<Done | undefined> {
    if (this.standsStill || this.#held || existsSync(this.#pausedMarker)) return undefined;
    const over = Promise.withResolvers<void>();
    this.#held = over.promise;
    this.#taking += 1;
    const keep = (what: string, deadlineMs: number): Promise<string> =>
      this.#keeper.report([what, this.socket, this.#pausedMarker], join(this.#dir, "held"), deadlineMs);
    try {
      await keep("pause", PAUSE_DEADLINE_MS);
      const sentry = new SentryControl(this.socket, this.record.name);
      return await act(sentry).finally(() => sentry.close());
    } finally {
      // Also where pausing took too long: it may have come to it since.
      await keep("resume", RESUME_DEADLINE_MS).finally(() => {
        this.#taking -= 1;
        this.#held = undefined;
        over.resolve();
      });
    }
  }

  /** Has its sentry free what it no longer uses. */
  async collect(): Promise<void> {
    const sentry = new SentryControl(this.socket, this.record.name);
    await sentry.collect().finally(() => sentry.close());
  }

  async #whileTaken(args: string[]): Promise<string> {
    await this.#held;
    this.#taking += 1;
    try {
      return await this.#keeper.report(args, this.#reportFile, SNAPSHOT_DEADLINE_MS);
    } finally {
      this.#taking -= 1;
    }
  }

  /** Of its sentry's threads of execution, as that tells them. */
  async stacks(deadlineMs: number): Promise<string> {
    const out = join(this.#dir, "stacks");
    const [program = "", ...words] = this.#runsc("debug", "--stacks", this.record.name);
    const argv: [string, ...string[]] = [program, ...words];
    try {
      await this.#environment.native.exec({ argv, stdoutFile: out, stderrFile: out, deadlineMs });
      return await readFile(out, "utf8");
    } finally {
      await rm(out, { force: true });
    }
  }

  async isAlive(): Promise<boolean> {
    const { sandbox } = this.record;
    return sandbox !== undefined && (await isAlive(sandbox));
  }

  /** Why it ended, in public wording. */
  async exitReason(): Promise<string> {
    if (await this.cgroup.outOfMemory()) {
      return "the machine ran out of memory; create it with more memory_mb";
    }
    const status = await this.#endStatus();
    if (status === undefined) return "the machine's process ended";
    const signal = signalOf(status);
    return signal === 0
      ? `the machine's process ended with code ${status >> 8}`
      : `the machine's process was killed by signal ${signal}`;
  }

  /** Whether its process was ended from outside: by the kernel for want of memory, or by a SIGKILL. */
  async wasKilled(): Promise<boolean> {
    return (await this.cgroup.outOfMemory()) || signalOf((await this.#endStatus()) ?? 0) === SIGKILL;
  }

  /** As wait(2) has it. Undefined: it has not ended, or nobody saw it end. */
  async #endStatus(): Promise<number | undefined> {
    const [, status] = (await readFile(this.exitFile, "utf8").catch(() => "")).trim().split(" ");
    return status === undefined ? undefined : Number(status);
  }

  /** Kills it and gives everything back but the disk image. Repeatable, for a half-made unit too. */
  async destroy(release: (slot: number) => Promise<void>): Promise<void> {
    const { keeper } = this.record;
    await this.cgroup.destroy();
    if (keeper) await ended(keeper);
    // Where a swap was cut off, the new disk still lies beside the slot.
    await detachDisk(this.#environment.native, join(this.#dir, "disk"));
    await detachDisk(this.#environment.native, this.mountPoint);
    await rm(this.slotDir, { recursive: true, force: true });
    // A unit known by its cgroup alone has no slot on record.
    if (this.record.slot >= 0) await release(this.record.slot);
    await rm(this.#dir, { recursive: true, force: true });
  }
}

export const unitCgroup = (environment: { tag: string }, name: string): string =>
  `/cloche-${environment.tag}/${name}`;
export const unitDir = (environment: { runDir: string }, name: string): string =>
  join(environment.runDir, "units", name);
export const slotDir = (environment: { runDir: string }, name: string): string =>
  join(environment.runDir, "slots", name);

/** Where runsc keeps what its sandboxes share: an empty network namespace, pinned by a mount. */
export const sharedRoot = (runDir: string): string => join(runDir, "shared");

/** Its record, where a unit of that name was made since the last reboot. */
export async function readUnit(
  environment: { runDir: string },
  name: string,
): Promise<UnitRecord | undefined> {
  return (await readJsonFile(join(unitDir(environment, name), "unit.json"))) as UnitRecord | undefined;
}

/** Of a slot that is no longer there: its unit can only be destroyed. */
export const goneLease = (slot: number) => ({
  slot,
  namespacePath: "",
  agentHost: "",
  prepare: () => Promise.reject(new Error(`network slot ${slot} is gone`)),
});

/** One of which only the cgroup is left. */
export const unknownUnit = (name: string): UnitRecord => ({
  name,
  slot: -1,
  agentRootDir: "",
  limits: limitsOf(leastShape),
});

/** Of a wait status; 0: it ended by itself. */
const signalOf = (status: number): number => status & 0x7f;

/** Of what the keeper reports. */
const pauseMsOf = (said: string): number => (JSON.parse(said) as { pauseUs: number }).pauseUs / 1_000;

/** The keeper ends by itself once it has collected the machine's processes. */
async function ended(keeper: ProcessIdentity): Promise<void> {
  for (let i = 0; i < KEEPER_END_TRIES; i += 1) {
    if (!(await isAlive(keeper))) return;
    await new Promise((resolve) => setTimeout(resolve, KEEPER_END_PAUSE_MS));
  }
  process.kill(keeper.pid, "SIGKILL");
}
