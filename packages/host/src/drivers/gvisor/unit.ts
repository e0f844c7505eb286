/**
 * One runsc sandbox: its bundle, its keeper, its slot directory, its cgroup, its network slot.
 * Owns <runDir>/units/<name>/ (unit.json, bundle, runsc state, logs), <runDir>/slots/<name>/ and the cgroup of that name.
 *
 *   make ──▶ blank (runsc create: no agent yet) ──start──▶ running (agent booted cold)
 *                   │                          └─restore─▶ running (agent out of a memory image)
 *                   ▼                                        │ its process ends: the keeper writes `exit`
 *                destroy (from any state, repeatable) ◀──────┘
 *
 * Called by the gVisor driver only. The processes (children of the keeper, not ours) and unit.json survive the service.
 * Nothing survives a reboot: runDir lies on a tmpfs.
 */
import { existsSync, renameSync, writeFileSync } from "node:fs";
import { mkdir, readFile, rename, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { readJsonFile } from "@cloche/base";
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

/** Time for an agent to listen, after a boot or a restore. */
export const agentStartMs = 60_000;
export const agentRestoreMs = 60_000;

/** Shared by all units of one driver. */
export interface UnitEnvironment {
  /** Instance tag: names the cgroup root. */
  tag: string;
  /** On a tmpfs, short: the control socket's path must stay below 108 bytes. */
  runDir: string;
  runsc: string;
  keeper: string;
  native: Native;
  agentRoot: AgentRoot;
  /** Absent: machines are never frozen from outside. */
  standstill?: Standstill;
}

export interface UnitRecord {
  name: string;
  slot: number;
  /** Absent until runsc create returned. */
  keeper?: ProcessIdentity;
  sandbox?: ProcessIdentity;
  limits: CgroupLimits;
  /** Root directory of the unit's agent. An upgrade brings a new root, but a memory image needs its own. */
  agentRootDir: string;
  /** Version of its sentry, and so of the memory images that it writes, even after a later release adopted the machine. */
  runscVersion: string;
  /** Port of its agent. */
  agentPort: number;
  /** The machine that the unit belongs to. */
  machineId?: string;
  /** Disk image mounted at slot/disk. */
  disk?: string;
}

// Measured: systrap is the fast platform without KVM; directfs avoids most calls to the gofer.
const runscFlags =
  "--platform=systrap --network=sandbox --overlay2=none --host-uds=none --file-access=exclusive --directfs=true --net-disconnect-ok --allow-suid --restore-spec-validation=warning".split(
    " ",
  );
/** Memory is written at disk speed: enough for the largest. */
const snapshotDeadlineMs = 600_000;
const sigkill = 9;
/** Time to wait for a save that a crash of the service left under way. A sentry that hangs never answers. */
const resumeDeadlineMs = 120_000;
/** Pausing 1,300 processes takes 1 s. */
const pauseDeadlineMs = 30_000;
const keeperEndTries = 400;
const keeperEndPauseMs = 5;

export class Unit {
  readonly #environment: UnitEnvironment;
  readonly record: UnitRecord;
  readonly lease: NetworkLease;
  readonly cgroup: Cgroup;
  #isFrozen = false;
  #taking = 0;
  /** Set while `whilePaused` runs. */
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
  /** Address of its agent. */
  get agent(): AgentAddress {
    return { agentHost: this.lease.agentHost, agentPort: this.record.agentPort };
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
      ...runscFlags,
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

  /** Saves only the memory, into `imageDir`. The unit stays paused for good. */
  async saveMemory(imageDir: string): Promise<void> {
    await this.#keeper.report(["save", this.socket, imageDir], this.#reportFile, snapshotDeadlineMs);
  }

  /** Writes the record to the tmpfs, so that the next start of the service finds the unit. */
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

  /** Restores the agent from a memory image: the files that `snapshot` wrote. */
  async restore(imageDir: string): Promise<void> {
    const command = ["restore", "--detach", "--bundle", this.#bundle, "--image-path", imageDir];
    if (await isReadInBackground(imageDir)) command.push("--background");
    await this.#keeper.run(this.#runsc(...command, this.record.name), this.#keeperFiles);
  }

  /** Saves the memory into `imageDir` and clones the disk to `diskClone`, at one instant. `template`: make the image small. */
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

  /** The unit as a running machine. */
  asMachine(id: string, secret: string | undefined): RunningMachine {
    return { id, ...this.agent, bootstrapSecret: secret, blockDevice: undefined };
  }

  /** Writes dirty pages to the disk while the machine runs. */
  writeBackDisk(): Promise<void> {
    return writeBackDisk(this.#environment.native, this.mountPoint);
  }

  /** Clones only the disk, at one instant. Answers for how many milliseconds the sandbox was paused. */
  async cloneDisk(to: string): Promise<number> {
    const disk = this.record.disk;
    if (disk === undefined) throw new Error(`unit ${this.record.name} has no disk`);
    const args = ["checkpoint", this.socket, this.mountPoint, disk, to, this.#pausedMarker];
    return pauseMsOf(await this.#whileTaken(args));
  }

  /** Freezes or thaws the unit. A frozen unit uses no CPU and later continues where it was. */
  async freeze(frozen: boolean): Promise<void> {
    if (frozen) await this.#held;
    const { sandbox } = this.record;
    if (frozen && sandbox) await this.cgroup.isolate(sandbox.pid);
    if (frozen) this.#isFrozen = true;
    await this.cgroup.freeze(frozen);
    this.#isFrozen = frozen;
  }

  /** Makes the cgroups that the lease's guard needs to freeze it. Repeatable. */
  async isolate(): Promise<void> {
    const { sandbox } = this.record;
    if (sandbox) await this.cgroup.isolate(sandbox.pid);
  }

  /** Thaws and resumes a unit that a crash of the service left paused in a snapshot. Harmless otherwise. */
  async unblock(): Promise<void> {
    await this.freeze(false).catch(() => undefined);
    const args = ["resume", this.socket, this.#pausedMarker];
    await this.#keeper.report(args, this.#reportFile, resumeDeadlineMs);
  }

  async attachDisk(image: string): Promise<void> {
    this.record.disk = image;
    this.save();
    await attachDisk(this.#environment.native, image, this.mountPoint);
  }

  /** Renames the attached image, within its file system. */
  async renameDisk(to: string): Promise<void> {
    await rename(this.record.disk ?? "", to);
    this.record.disk = to;
    this.save();
  }

  /**
   * Swaps the disk image of the living sandbox. `letGo` makes the agent end all users' processes and let go of the old disk. The sentry keeps directories of the old disk in
   * its cache, so the old disk is unmounted lazily and could not be attached again at once. The step that may fail, mounting
   * the new image, is therefore done first, beside the slot, before `letGo`. If this throws, the old disk is still attached.
   * Repeatable, also after a crash.
   */
  async replaceDisk(image: string, letGo: () => Promise<void>): Promise<void> {
    const { native } = this.#environment;
    const staging = join(this.#dir, "disk");
    await mkdir(staging, { recursive: true });
    if ((await this.#imageInSlot()) === image) await letGo();
    else {
      await attachDisk(native, image, staging);
      try {
        await letGo();
        await native.replace(staging, this.mountPoint);
      } catch (error) {
        await detachDisk(native, staging);
        throw error;
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

  /** Whether we keep its agent from answering: the unit is frozen, or its memory or disk is being saved. */
  get standsStill(): boolean {
    return this.#isFrozen || this.#taking > 0 || (this.#environment.standstill?.isOn() ?? false);
  }

  /**
   * Pauses the unit, lets `act` talk to its sentry, and always resumes the unit. If the service ends in between, `unblock` resumes it.
   * Answers undefined, and does nothing, if the unit already stands still.
   */
  async whilePaused<Done>(act: (sentry: SentryControl) => Promise<Done>): Promise<Done | undefined> {
    if (this.standsStill || this.#held || existsSync(this.#pausedMarker)) return undefined;
    const over = Promise.withResolvers<void>();
    this.#held = over.promise;
    this.#taking += 1;
    const keep = (what: string, deadlineMs: number): Promise<string> =>
      this.#keeper.report([what, this.socket, this.#pausedMarker], join(this.#dir, "held"), deadlineMs);
    try {
      await keep("pause", pauseDeadlineMs);
      const sentry = new SentryControl(this.socket, this.record.name);
      return await act(sentry).finally(() => sentry.close());
    } finally {
      // Also after a pause that timed out: it may have taken effect since.
      await keep("resume", resumeDeadlineMs).finally(() => {
        this.#taking -= 1;
        this.#held = undefined;
        over.resolve();
      });
    }
  }

  /** Makes its sentry free memory that it no longer uses. */
  async collect(): Promise<void> {
    const sentry = new SentryControl(this.socket, this.record.name);
    await sentry.collect().finally(() => sentry.close());
  }

  async #whileTaken(args: string[]): Promise<string> {
    await this.#held;
    this.#taking += 1;
    try {
      return await this.#keeper.report(args, this.#reportFile, snapshotDeadlineMs);
    } finally {
      this.#taking -= 1;
    }
  }

  /** Stacks of the sentry's goroutines, as the sentry reports them. */
  async stacks(deadlineMs: number): Promise<string> {
    const out = join(this.#dir, "stacks");
    const [program = "", ...args] = this.#runsc("debug", "--stacks", this.record.name);
    const argv: [string, ...string[]] = [program, ...args];
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

  /** Why the unit ended, in public words. */
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

  /** Whether its process was ended from outside: out of memory, or by SIGKILL. */
  async wasKilled(): Promise<boolean> {
    return (await this.cgroup.outOfMemory()) || signalOf((await this.#endStatus()) ?? 0) === sigkill;
  }

  /** Wait status as in wait(2). Undefined: it has not ended, or its keeper did not see the end. */
  async #endStatus(): Promise<number | undefined> {
    const [, status] = (await readFile(this.exitFile, "utf8").catch(() => "")).trim().split(" ");
    return status === undefined ? undefined : Number(status);
  }

  /** Kills the unit and frees everything except the disk image. Repeatable, also for a half-made unit. */
  async destroy(release: (slot: number) => Promise<void>): Promise<void> {
    const { keeper } = this.record;
    await this.cgroup.destroy();
    if (keeper) await ended(keeper);
    // After a swap that was cut off, the new disk is still mounted beside the slot.
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

/** Directory that all sandboxes of runsc share. It has an empty network namespace, pinned by a mount. */
export const sharedRoot = (runDir: string): string => join(runDir, "shared");

/** The record of a unit made since the last reboot; undefined if there is none. */
export async function readUnit(
  environment: { runDir: string },
  name: string,
): Promise<UnitRecord | undefined> {
  return (await readJsonFile(join(unitDir(environment, name), "unit.json"))) as UnitRecord | undefined;
}

/** Lease of a slot that is gone: its unit can only be destroyed. */
export const goneLease = (slot: number) => ({
  slot,
  namespacePath: "",
  agentHost: "",
  prepare: () => Promise.reject(new Error(`network slot ${slot} is gone`)),
});

/** Record of a unit of which only the cgroup is left. */
export const unknownUnit = (name: string): UnitRecord => ({
  name,
  slot: -1,
  agentRootDir: "",
  runscVersion: "",
  agentPort: 0,
  limits: limitsOf(leastShape),
});

/** Signal in a wait status; 0: the process exited by itself. */
const signalOf = (status: number): number => status & 0x7f;

/** From the keeper's report. */
const pauseMsOf = (report: string): number => (JSON.parse(report) as { pauseUs: number }).pauseUs / 1_000;

/** Waits for the keeper, which ends by itself once the machine's processes are reaped; kills it if it does not. */
async function ended(keeper: ProcessIdentity): Promise<void> {
  for (let i = 0; i < keeperEndTries; i += 1) {
    if (!(await isAlive(keeper))) return;
    await new Promise((resolve) => setTimeout(resolve, keeperEndPauseMs));
  }
  process.kill(keeper.pid, "SIGKILL");
}
