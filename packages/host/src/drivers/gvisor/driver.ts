/**
 * Machines as gVisor sandboxes. A machine runs in a unit (unit.ts, units.ts); machine-units.ts keeps which unit belongs to which
 * machine; ready/ready-machines.ts makes units ahead of requests.
 *
 * Called by the host service, which serialises the calls of one machine. Survives a crash: see unit.ts. `adopt` reads
 * gvisor.json and the unit's record, and trusts them only if the process with that pid and start time lives.
 */
import { mkdir, readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { allDone, CleanupStack, step, Turns } from "@cloche/base";
import { ClocheError, defaults } from "@cloche/protocol";
import { DiskFault } from "../../disk/disk.ts";
import { readCpuClass } from "../../suspended/cpu-class.ts";
import type { Native } from "../../sys/native.ts";
import { prepareParent, removeGroup } from "../cgroup.ts";
import {
  type Freezer,
  type SnapshotHooks,
  type MachineDriver,
  type MachineFiles,
  type MachineResources,
  type MachineStats,
  type ReadyHooks,
  type ReadyMachines,
  type RunningMachine,
  type SnapshotFiles,
  snapshotDisk,
  type Standstill,
  type SnapshotTimes,
} from "../driver.ts";
import type { NetworkSlots } from "../network-slots.ts";
import type { AgentRoot } from "./bundle.ts";
import { writeBootConfig } from "./boot-config.ts";
import { requireDescriptors } from "./descriptors.ts";
import { MachineUnits } from "./machine-units.ts";
import {
  memoryClassOf,
  memoryClassOfImage,
  noteMadeWith,
  requireForkable,
  requireRestorable,
  restoreError,
} from "./memory-image.ts";
import { sweepReadyDisks } from "./ready-disks.ts";
import { GvisorReadyMachines } from "./ready/ready-machines.ts";
import { type MadeWith, platformKey, type Template, templateKey } from "./ready/template.ts";
import { probeRunsc } from "./probe.ts";
import { shareMounts, unmountBelow, unshareMounts } from "./slot-mounts.ts";
import { snapshotError } from "./snapshot-error.ts";
import { agentRestoreMs, agentStartMs, type Unit } from "./unit.ts";
import { leastShape, limitsOf, madeAtOnce } from "./unit-limits.ts";
import { Units } from "./units.ts";
import { ExitWatch, type ExitWatchOptions } from "./watch/exit-watch.ts";

export interface GvisorOptions extends ExitWatchOptions {
  /** Instance tag. */
  tag: string;
  /** Directory of this instance, on a tmpfs: /run/cloche-<tag>/gvisor. */
  runDir: string;
  runsc: string;
  /** As `runsc --version` prints it. Images of another version are not restored. */
  runscVersion: string;
  /** Path of the keeper; the probe's program lies beside it. */
  keeper: string;
  native: Native;
  agentRoot: AgentRoot;
  network: NetworkSlots;
  /** Reflink pool; the template's image lies there. */
  poolDir: string;
  /** Machines of the default shape kept ready, for each kind (ready-units.ts). 0: no ready machines and no template. */
  ready: number;
  /** The most kept ready of each kind, after a burst. */
  readyMost: number;
  randomBytes: (length: number) => Uint8Array;
}

/** Before `start`, and if no machines are kept ready. */
const nothingReady: ReadyMachines = {
  claim: async () => undefined,
  freshDisk: async () => false,
  counts: () => ({ blank: 0, warm: 0, shaped: 0 }),
  wanted: () => ({ blank: 0, warm: 0 }),
};

/** Waits for the turn to make a unit from nothing; resolves at once if the machine already has its turn. */
type Turn = () => Promise<void>;

export class GvisorDriver implements MachineDriver, Freezer {
  readonly runtime = "gvisor";
  readonly #options: GvisorOptions;
  readonly #units: Units;
  readonly #machines: MachineUnits;
  readonly #exits: ExitWatch;
  /** By the version of runsc. */
  readonly #platforms = new Map<string, Promise<string>>();
  #cpuClass: Promise<string> | undefined;
  #ready: GvisorReadyMachines | undefined;
  readonly #turns = new Turns(madeAtOnce());
  readonly #standstill: Standstill = { isOn: () => false };

  constructor(options: GvisorOptions) {
    this.#options = options;
    this.#units = new Units({ ...options, standstill: this.#standstill });
    this.#exits = new ExitWatch(options);
    this.#machines = new MachineUnits(this.#units, this.#exits, options.network);
  }

  async probe(): Promise<void> {
    try {
      await mkdir(join(this.#options.runDir, "units"), { recursive: true, mode: 0o700 });
      await shareMounts(join(this.#options.runDir, "slots"));
      await prepareParent(`/cloche-${this.#options.tag}`);
      await probeRunsc({
        program: join(dirname(this.#options.keeper), "runsc-probe"),
        version: this.#options.runscVersion,
        make: (argv) => this.#units.make(limitsOf(leastShape), { argv }),
        destroy: (unit) => this.#units.destroy(unit),
      });
    } catch (error) {
      if (error instanceof ClocheError) throw error;
      throw new ClocheError("failed_precondition", "gVisor cannot run on this machine", { cause: error });
    }
  }

  async start(hooks?: ReadyHooks): Promise<void> {
    const { ready, readyMost, poolDir, native, log } = this.#options;
    await sweepReadyDisks(poolDir);
    this.#exits.start();
    if (ready === 0) return;
    this.#ready = new GvisorReadyMachines({
      units: this.#units,
      machines: this.#machines,
      native,
      poolDir,
      ready,
      readyMost,
      templateKey: templateKey(await this.#madeWith(), hooks?.key ?? ""),
      hooks,
      newSecret: () => this.#newSecret(),
      log,
    });
    this.#ready.start();
  }

  get ready(): ReadyMachines {
    return this.#ready ?? nothingReady;
  }

  get freezer(): Freezer {
    return this;
  }

  standStillWhile(isStill: () => boolean): void {
    this.#standstill.isOn = isStill;
  }

  /** Resolves when all wanted machines are ready; for tests and benchmarks. */
  async settled(): Promise<void> {
    await this.#ready?.settled();
  }

  async stop(): Promise<void> {
    await this.#ready?.close();
    this.#exits.close();
    const left = await readdir(join(this.#options.runDir, "units")).catch(() => []);
    if (left.length > 0) return;
    // No unit is left: remove what `probe` made.
    await unshareMounts(join(this.#options.runDir, "slots"));
    // A release before 2026-11 kept runsc in a mount there, and left the mounts that runsc pins below our directory.
    await unmountBelow(this.#options.runDir);
    await removeGroup(`/cloche-${this.#options.tag}`);
    await rm(this.#options.runDir, { recursive: true, force: true });
  }

  create(files: MachineFiles, resources: MachineResources): Promise<RunningMachine> {
    return this.#first((turn) => this.#create(files, resources, turn));
  }

  async #create(files: MachineFiles, resources: MachineResources, turn: Turn): Promise<RunningMachine> {
    const secret = this.#machines.freshSecret(files.id);
    await this.stopMachine(files);
    const template = await this.#ready?.template();
    const prepared = template !== undefined && template.secret === secret;
    if (template) {
      try {
        return await this.#createFrom(template, prepared, files, resources, turn);
      } catch (error) {
        if (error instanceof DiskFault && !prepared) throw error;
        await this.#ready?.dropTemplate(error);
        if (prepared) await this.#ready?.makeFreshDisk(files.diskImage, resources.diskMb);
      }
    }
    return CleanupStack.guard(async (cleanup) => {
      const unit = await this.#take(files, resources, cleanup, turn);
      const secret = this.#newSecret();
      await writeBootConfig(unit.slotDir, secret);
      await unit.attachDisk(files.diskImage);
      await unit.start();
      return this.#machines.running(unit, files.id, secret, agentStartMs);
    });
  }

  /** `prepared`: the disk is a clone of the template's disk, so the prepared memory, whose guest uses that disk, fits. */
  #createFrom(
    template: Template,
    prepared: boolean,
    files: MachineFiles,
    resources: MachineResources,
    turn: Turn,
  ): Promise<RunningMachine> {
    return CleanupStack.guard(async (cleanup) => {
      const unit = await this.#take(files, resources, cleanup, turn);
      if (prepared) await unit.attachDisk(files.diskImage);
      await unit.restore(prepared ? template.prepared.dir : template.dir);
      if (!prepared) await unit.attachDisk(files.diskImage);
      return this.#machines.running(unit, files.id, template.secret, agentRestoreMs);
    });
  }

  async requireRestorable(from: SnapshotFiles): Promise<void> {
    await requireRestorable(from.dir, await this.#madeWith());
  }

  async memoryClass(from?: SnapshotFiles): Promise<string | undefined> {
    return from === undefined ? memoryClassOf(await this.#madeWith()) : await memoryClassOfImage(from.dir);
  }

  async restore(
    files: MachineFiles,
    from: SnapshotFiles,
    resources: MachineResources,
  ): Promise<RunningMachine> {
    const { agentRootDir, agentPort } = await requireRestorable(from.dir, await this.#madeWith());
    await this.stopMachine(files);
    return this.#first((turn) =>
      CleanupStack.guard(async (cleanup) => {
        const unit = await this.#take(files, resources, cleanup, turn, { agentRootDir, agentPort });
        await unit.attachDisk(files.diskImage);
        await unit.restore(from.dir).catch(async (error: unknown) => {
          throw await restoreError(unit, error);
        });
        return this.#machines.running(unit, files.id, undefined, agentRestoreMs);
      }),
    );
  }

  /** Runs `make` before units are made ahead. A machine that waited for a turn keeps it until it is made. */
  #first<Made>(make: (turn: Turn) => Promise<Made>): Promise<Made> {
    const inTurn = async (): Promise<Made> => {
      let leave: (() => void) | undefined;
      try {
        return await make(async () => {
          leave ??= await step("turn", () => this.#turns.enter());
        });
      } finally {
        leave?.();
      }
    };
    return this.#ready ? this.#ready.first(inTurn) : inTurn();
  }

  async adopt(files: MachineFiles): Promise<RunningMachine | undefined> {
    const unit = await this.#machines.find(files);
    if (!unit || !(await unit.isAlive())) return undefined;
    await unit.isolate();
    this.#machines.watch(unit, files.id);
    return unit.asMachine(files.id, undefined);
  }

  async checkpointDisk(
    files: MachineFiles,
    toImage: string,
    hooks: SnapshotHooks,
  ): Promise<{ pauseMs: number }> {
    const unit = await this.#machines.living(files);
    await requireDescriptors(unit.record.sandbox?.pid);
    await Promise.all([hooks.flush(), unit.writeBackDisk()]);
    return { pauseMs: await unit.cloneDisk(toImage) };
  }

  async swapDisk(files: MachineFiles, toImage: string, hooks: SnapshotHooks): Promise<void> {
    const unit = await this.#machines.living(files);
    await requireDescriptors(unit.record.sandbox?.pid);
    await unit.replaceDisk(toImage, () => hooks.detachDisk());
  }

  async snapshot(
    files: MachineFiles,
    into: SnapshotFiles,
    options: { stop: boolean },
    hooks: SnapshotHooks,
  ): Promise<SnapshotTimes> {
    const unit = await this.#machines.living(files);
    await requireDescriptors(unit.record.sandbox?.pid);
    const madeWith = await this.#madeWith(unit.record);
    if (!options.stop) requireForkable(madeWith, await this.#madeWith());
    await allDone([hooks.flush(), noteMadeWith(into.dir, madeWith, options.stop)]);
    try {
      return await unit.snapshot(into.dir, snapshotDisk(into), options);
    } catch (error) {
      throw snapshotError(error);
    }
  }

  async freeze(files: MachineFiles, frozen: boolean): Promise<void> {
    const unit = await this.#machines.find(files);
    if (!unit || !(await unit.isAlive())) return;
    await unit.freeze(frozen);
  }

  async unblock(files: MachineFiles): Promise<void> {
    const unit = await this.#machines.find(files);
    if (unit && (await unit.isAlive())) await unit.unblock();
  }

  async stats(files: MachineFiles): Promise<MachineStats> {
    return (await this.#machines.living(files)).cgroup.figures();
  }

  onExit(listener: (id: string, reason: string) => void): void {
    this.#exits.onExit(listener);
  }

  async endNow(files: MachineFiles): Promise<void> {
    await (await this.#machines.find(files))?.cgroup.kill();
  }

  stopMachine(files: MachineFiles): Promise<void> {
    return this.#machines.stop(files);
  }

  destroy(files: MachineFiles): Promise<void> {
    return this.#machines.stop(files);
  }

  sweep(keep: ReadonlySet<string>): Promise<string[]> {
    return this.#units.sweep(keep);
  }

  async #take(
    files: MachineFiles,
    resources: MachineResources,
    cleanup: CleanupStack,
    turn: Turn,
    restored?: { agentRootDir: string; agentPort: number },
  ): Promise<Unit> {
    let unit = await this.#takeBlank(resources, restored);
    if (unit === undefined) {
      await turn();
      unit = await this.#units.make(limitsOf(resources), restored);
    }
    await this.#machines.give(unit, files, resources, cleanup);
    return unit;
  }

  /** A blank unit of exactly that shape. Blanks have only the agent's present root, so an older image gets none. */
  async #takeBlank(
    resources: MachineResources,
    restored?: { agentRootDir: string; agentPort: number },
  ): Promise<Unit | undefined> {
    if (restored !== undefined && restored.agentRootDir !== this.#options.agentRoot.dir) return undefined;
    // A create with the default disk asked for a warm unit first.
    return this.#ready?.takeBlank(resources, restored === undefined && resources.diskMb === defaults.diskMb);
  }

  /** The `MadeWith` of images that such a sentry writes; default: a sentry started now. */
  async #madeWith({
    agentRootDir = this.#options.agentRoot.dir,
    runscVersion = this.#options.runscVersion,
    agentPort = defaults.agentPort as number,
  } = {}): Promise<MadeWith> {
    const platform = this.#platforms.get(runscVersion) ?? platformKey(runscVersion);
    this.#platforms.set(runscVersion, platform);
    this.#cpuClass ??= readCpuClass();
    const cpu = { platform: await platform, cpuClass: await this.#cpuClass };
    return { agentRootDir, ...cpu, runscVersion, agentPort };
  }

  #newSecret(): string {
    return Buffer.from(this.#options.randomBytes(32)).toString("base64url");
  }
}
