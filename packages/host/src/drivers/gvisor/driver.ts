// Machines as gVisor sandboxes. Owns the units (unit.ts) and which machine has which: <machine dir>/gvisor.json.
//
// Called by the host service, which serialises the calls of one machine. Survives a crash: see unit.ts; `adopt` reads
// gvisor.json and the unit's record, and believes them only when the process with that start time lives.
import { mkdir, readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { allDone, CleanupStack, eachLimited, step, Turns } from "@cloche/base";
import { ClocheError, defaults, firstReleaseAgentPort } from "@cloche/protocol";
import { cloneDisk, DiskFault, growDisk } from "../../disk/disk.ts";
import type { Native } from "../../sys/native.ts";
import { agentListens } from "../../agent-calls/agent-listens.ts";
import { childGroups, type CgroupLimits, prepareParent, removeGroup } from "../cgroup.ts";
import {
  type GuestHooks,
  type MachineDriver,
  type MachineFiles,
  type MachineResources,
  type MachineStats,
  type ReadyHooks,
  type RunningMachine,
  type SnapshotFiles,
  snapshotDisk,
  type SnapshotTimes,
} from "../driver.ts";
import type { NetworkSlots } from "../network-slots.ts";
import type { AgentRoot } from "./bundle.ts";
import { writeBootConfig } from "./boot-config.ts";
import { ExitWatch, type ExitWatchOptions } from "./watch/exit-watch.ts";
import { readNote, removeNote, writeNote } from "./machine-note.ts";
import { noteMadeWith, requireForkable, requireRestorable, restoreError } from "./memory-image.ts";
import { spareMemory } from "./pool/spare-memory.ts";
import { probeRunsc } from "./probe.ts";
import { ReadyUnits, type WarmUnit } from "./pool/ready-units.ts";
import { shareMounts, unmountBelow, unshareMounts } from "./slot-mounts.ts";
import { snapshotError } from "./snapshot-error.ts";
import { type MadeWith, platformKey, type Template, templateKey, TemplateStore } from "./pool/template.ts";
import {
  claimedAtOnce,
  isDefaultShape,
  leastShape,
  limitsOf,
  madeAtOnce,
  withHeadroom,
} from "./unit-limits.ts";
import { goneLease, readUnit, Unit, type UnitEnvironment, type UnitRecord, unknownUnit } from "./unit.ts";

export interface GvisorOptions extends ExitWatchOptions {
  /** Instance tag. */
  tag: string;
  /** Of this instance, on a tmpfs: /run/cloche-<tag>/gvisor. */
  runDir: string;
  runsc: string;
  /** As it says itself: images of another are not restored. */
  runscVersion: string;
  /** Path of the keeper; the probe's program lies beside it. */
  keeper: string;
  native: Native;
  agentRoot: AgentRoot;
  network: NetworkSlots;
  /** Reflink pool; the template's image lies there. */
  poolDir: string;
  /** Machines of the default shape kept ready, of each kind (ready-units.ts). 0: none, and no template. */
  ready: number;
  /** After a burst, up to so many. */
  readyMost: number;
  randomBytes: (length: number) => Uint8Array;
}

const AGENT_START_MS = 60_000;
const AGENT_RESTORE_MS = 60_000;

/** Waits until this machine may be made from nothing; at once, where it has waited before. */
type Turn = () => Promise<void>;

export class GvisorDriver implements MachineDriver {
  readonly runtime = "gvisor";
  readonly #options: GvisorOptions;
  readonly #units = new Map<string, Unit>();
  readonly #exits: ExitWatch;
  readonly #environment: UnitEnvironment;
  /** By version of runsc. */
  readonly #platforms = new Map<string, Promise<string>>();
  #templates: TemplateStore | undefined;
  #ready: ReadyUnits | undefined;
  readonly #turns = new Turns(madeAtOnce());
  readonly #claims = new Turns(claimedAtOnce());
  #hooks: ReadyHooks | undefined;
  /** Secret of the template whose disk a machine to be created has. In memory alone: after a crash it may have run on that disk. */
  readonly #fresh = new Map<string, string>();

  constructor(options: GvisorOptions) {
    this.#options = options;
    this.#environment = options;
    this.#exits = new ExitWatch(options);
  }

  async probe(): Promise<void> {
    try {
      await mkdir(join(this.#options.runDir, "units"), { recursive: true, mode: 0o700 });
      await shareMounts(join(this.#options.runDir, "slots"));
      await prepareParent(`/cloche-${this.#options.tag}`);
      await probeRunsc({
        program: join(dirname(this.#options.keeper), "runsc-probe"),
        version: this.#options.runscVersion,
        make: (argv) => this.#makeUnit(limitsOf(leastShape), { argv }),
        destroy: (unit) => this.#destroyUnit(unit),
      });
    } catch (error) {
      if (error instanceof ClocheError) throw error;
      throw new ClocheError("failed_precondition", "gVisor cannot run on this machine", { cause: error });
    }
  }

  async start(hooks?: ReadyHooks): Promise<void> {
    const { ready, readyMost, poolDir, log } = this.#options;
    await this.#sweepReadyDisks();
    this.#exits.start();
    if (ready === 0) return;
    const key = templateKey(await this.#madeWith(), hooks?.key ?? "");
    this.#templates = new TemplateStore({ poolDir, key, native: this.#options.native });
    this.#hooks = hooks;
    this.#ready = new ReadyUnits({
      count: ready,
      most: readyMost,
      spareMemory,
      makeBlank: (shape = defaults) => this.#makeUnit(limitsOf(shape), { ahead: true }),
      freeze: (unit, frozen) => (frozen ? this.#keep(unit) : unit.freeze(false)),
      ...(hooks && { warm: (unit) => this.#warm(unit, hooks), offer: (all) => hooks.offer(all) }),
      destroy: (unit) => this.#destroyUnit(unit),
      log,
    });
    this.#ready.start();
  }

  readyCounts(): Record<string, number> {
    return this.#ready?.counts() ?? { blank: 0, warm: 0, shaped: 0 };
  }

  readyWanted(): Record<string, number> {
    return this.#ready?.wanted() ?? { blank: 0, warm: 0 };
  }

  /** Resolves when what is to be kept ready is; for tests and benchmarks. */
  async settled(): Promise<void> {
    await this.#ready?.settled();
  }

  async stop(): Promise<void> {
    await this.#ready?.close();
    this.#exits.close();
    const left = await readdir(join(this.#options.runDir, "units")).catch(() => []);
    if (left.length > 0) return;
    // Nothing of ours is left: give back what probe made.
    await unshareMounts(join(this.#options.runDir, "slots"));
    // A release before 2026-11 had runsc in a mount of its own there, and did not know what runsc pins in ours.
    await unmountBelow(this.#options.runDir);
    await removeGroup(`/cloche-${this.#options.tag}`);
    await rm(this.#options.runDir, { recursive: true, force: true });
  }

  async claimReady(
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined> {
    if (!isDefaultShape(resources) || resources.diskMb !== defaults.diskMb) return undefined;
    await this.stopMachine(files);
    return this.#ready?.first(async () => {
      const warm = await this.#ready?.takeWarm(files.id);
      return warm && this.#claim(warm, files, resources, given);
    });
  }

  async #claim(
    { unit, identity }: WarmUnit,
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined> {
    const leave = await step("turn", () => this.#claims.enter());
    try {
      return await CleanupStack.guard(async (cleanup) => {
        const listens = unit.freeze(false).then(() => this.#listens(unit, AGENT_RESTORE_MS));
        listens.catch(() => undefined); // awaited below, whatever is thrown before
        await this.#give(unit, files, resources, cleanup);
        await unit.renameDisk(files.diskImage);
        const machine = unit.asMachine(files.id, identity.secret);
        await allDone([listens, given(machine)]);
        this.#exits.watch(unit, files.id);
        return { ...machine, assignment: identity.assignment };
      });
    } catch (error) {
      // One that ended while it waited must not stop machines from being made.
      this.#options.log.warn({ err: error }, "a machine kept ready does not work: making one instead");
      return undefined;
    } finally {
      leave();
    }
  }

  async freshDisk(files: MachineFiles, { diskMb }: MachineResources): Promise<boolean> {
    const template = await this.#templates?.find();
    if (!template) return false;
    try {
      const image = await this.#templates?.disk(template, diskMb);
      if (image === undefined) return false;
      await cloneDisk(this.#options.native, image, files.diskImage);
    } catch (error) {
      if (error instanceof ClocheError && error.code === "resource_exhausted") throw error;
      await this.#dropTemplate(error);
      return false;
    }
    this.#fresh.set(files.id, template.secret);
    return true;
  }

  create(files: MachineFiles, resources: MachineResources): Promise<RunningMachine> {
    return this.#first((turn) => this.#create(files, resources, turn));
  }

  async #create(files: MachineFiles, resources: MachineResources, turn: Turn): Promise<RunningMachine> {
    const secret = this.#fresh.get(files.id);
    await this.stopMachine(files);
    const template = this.#options.ready > 0 ? await this.#templates?.find() : undefined;
    const prepared = template !== undefined && template.secret === secret;
    if (template) {
      try {
        return await this.#createFrom(template, prepared, files, resources, turn);
      } catch (error) {
        if (error instanceof DiskFault && !prepared) throw error;
        await this.#dropTemplate(error);
        if (prepared) await this.#makeFreshDisk(files.diskImage, resources.diskMb);
      }
    }
    return CleanupStack.guard(async (cleanup) => {
      const unit = await this.#take(files, resources, cleanup, turn);
      const secret = this.#newSecret();
      await writeBootConfig(unit.slotDir, secret);
      await unit.attachDisk(files.diskImage);
      await unit.start();
      return this.#running(unit, files.id, secret, AGENT_START_MS);
    });
  }

  /** A template that no machine can be made from must not stop machines from being made. */
  async #dropTemplate(error: unknown): Promise<void> {
    this.#options.log.warn({ err: error }, "template does not work: booting instead");
    await this.#templates?.drop();
  }

  /** `prepared`: the disk is a clone of the template's, and the users' guest in its memory stands on it. */
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
      return this.#running(unit, files.id, template.secret, AGENT_RESTORE_MS);
    });
  }

  async requireRestorable(from: SnapshotFiles): Promise<void> {
    await requireRestorable(from.dir, await this.#madeWith());
  }

  async restore(
    files: MachineFiles,
    from: SnapshotFiles,
    resources: MachineResources,
  ): Promise<RunningMachine> {
    const { agentRootDir, agentPort = firstReleaseAgentPort } = await requireRestorable(
      from.dir,
      await this.#madeWith(),
    );
    await this.stopMachine(files);
    return this.#first((turn) =>
      CleanupStack.guard(async (cleanup) => {
        const unit = await this.#take(files, resources, cleanup, turn, { agentRootDir, agentPort });
        await unit.attachDisk(files.diskImage);
        await unit.restore(from.dir).catch(async (error: unknown) => {
          throw await restoreError(unit, error);
        });
        return this.#running(unit, files.id, undefined, AGENT_RESTORE_MS);
      }),
    );
  }

  /** Before what is made ahead. Those that wait for a turn have it until they are done. */
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
    const unit = await this.#find(files);
    if (!unit || !(await unit.isAlive())) return undefined;
    this.#exits.watch(unit, files.id);
    return unit.asMachine(files.id, undefined);
  }

  async checkpointDisk(
    files: MachineFiles,
    toImage: string,
    hooks: GuestHooks,
  ): Promise<{ pauseMs: number }> {
    const unit = await this.#living(files);
    await Promise.all([hooks.flush(), unit.writeBackDisk()]);
    return { pauseMs: await unit.cloneDisk(toImage) };
  }

  async swapDisk(files: MachineFiles, toImage: string, hooks: GuestHooks): Promise<void> {
    const unit = await this.#living(files);
    await hooks.detachDisk();
    await unit.replaceDisk(toImage);
  }

  async snapshot(
    files: MachineFiles,
    into: SnapshotFiles,
    options: { stop: boolean },
    hooks: GuestHooks,
  ): Promise<SnapshotTimes> {
    const unit = await this.#living(files);
    const { agentRootDir, runscVersion } = unit.record;
    const agent = { agentRootDir, agentPort: unit.agent.agentPort };
    const madeWith = { ...(await this.#madeWith(agentRootDir, runscVersion ?? "")), ...agent };
    if (!options.stop) requireForkable(madeWith, await this.#madeWith());
    await allDone([hooks.flush(), noteMadeWith(into.dir, madeWith, options.stop)]);
    try {
      return await unit.snapshot(into.dir, snapshotDisk(into), options);
    } catch (error) {
      throw snapshotError(error);
    }
  }

  async freeze(files: MachineFiles, frozen: boolean): Promise<void> {
    const unit = await this.#find(files);
    if (!unit || !(await unit.isAlive())) return;
    await unit.freeze(frozen);
  }

  async unblock(files: MachineFiles): Promise<void> {
    const unit = await this.#find(files);
    if (unit && (await unit.isAlive())) await unit.unblock();
  }

  async stats(files: MachineFiles): Promise<MachineStats> {
    return (await this.#living(files)).cgroup.figures();
  }

  onExit(listener: (id: string, reason: string) => void): void {
    this.#exits.onExit(listener);
  }

  async endNow(files: MachineFiles): Promise<void> {
    await (await this.#find(files))?.cgroup.kill();
  }

  async stopMachine(files: MachineFiles): Promise<void> {
    this.#exits.unwatch(files.id);
    this.#fresh.delete(files.id);
    const unit = await this.#find(files);
    if (unit) await this.#destroyUnit(unit);
    await removeNote(files.dir);
  }

  async destroy(files: MachineFiles): Promise<void> {
    await this.stopMachine(files);
  }

  async sweep(keep: ReadonlySet<string>): Promise<string[]> {
    const swept: string[] = [];
    const names = new Set([
      ...(await readdir(join(this.#options.runDir, "units")).catch(() => [])),
      ...(await childGroups(`/cloche-${this.#options.tag}`)),
    ]);
    // All that a pool had grown to may be among them.
    await eachLimited([...names], async (name) => {
      const own = this.#units.get(name);
      // Made by this very driver and given to nobody: it is being made, or kept ready.
      if (own && own.record.machineId === undefined) return;
      const record = await readUnit(this.#options, name);
      if (record?.machineId !== undefined && keep.has(record.machineId)) return;
      const unit = own ?? (await this.#reopen(record ?? unknownUnit(name)));
      await this.#destroyUnit(unit);
      swept.push(name);
    });
    return swept;
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
      unit = await this.#makeUnit(limitsOf(resources), restored);
    }
    await this.#give(unit, files, resources, cleanup);
    return unit;
  }

  /** Of that very shape, in which only the agent's present root lies. */
  async #takeBlank(
    resources: MachineResources,
    restored?: { agentRootDir: string; agentPort: number },
  ): Promise<Unit | undefined> {
    if (restored !== undefined && restored.agentRootDir !== this.#options.agentRoot.dir) return undefined;
    if (!isDefaultShape(resources)) return this.#ready?.takeShaped(resources);
    // A create of the default disk has asked for a warm one before.
    return this.#ready?.takeBlank(restored === undefined && resources.diskMb === defaults.diskMb);
  }

  /** It waits frozen until it is given out, and counts as much as any other from then on. */
  async #keep(unit: Unit): Promise<void> {
    await unit.freeze(true);
    await unit.cgroup.weighAsUsual();
  }

  /** From here on the unit is that machine's. */
  async #give(
    unit: Unit,
    files: MachineFiles,
    resources: MachineResources,
    cleanup: CleanupStack,
  ): Promise<void> {
    cleanup.push("machine", () => this.stopMachine(files));
    cleanup.push("unit", () => this.#destroyUnit(unit));
    unit.record.machineId = files.id;
    unit.save();
    await writeNote(files.dir, { unit: unit.record.name });
    if (resources.egress) await this.#options.network.setEgressOf(unit.lease.agentHost, resources.egress);
  }

  /** What images need that such a sentry writes; one that is made now, where nothing else is said. Empty: of a version not known. */
  async #madeWith(
    agentRootDir = this.#options.agentRoot.dir,
    runscVersion = this.#options.runscVersion,
  ): Promise<MadeWith> {
    const platform = this.#platforms.get(runscVersion) ?? platformKey(runscVersion);
    this.#platforms.set(runscVersion, platform);
    return { agentRootDir, platform: await platform, ...(runscVersion !== "" && { runscVersion }) };
  }

  #newSecret(): string {
    return Buffer.from(this.#options.randomBytes(32)).toString("base64url");
  }

  /** Booted, and rehearsed on a disk that it lets go of again (template.ts). */
  async #buildTemplate(hooks: ReadyHooks): Promise<Template> {
    const unit = await this.#makeUnit(limitsOf(defaults));
    try {
      const secret = this.#newSecret();
      await writeBootConfig(unit.slotDir, secret);
      const image = await this.#readyDiskOf(unit);
      await hooks.disk(image);
      await unit.attachDisk(image);
      await unit.start();
      await this.#listens(unit, AGENT_START_MS);
      const agent = unit.agent;
      await hooks.prepare(agent, secret);
      await hooks.flush(agent, secret);
      return await (this.#templates as TemplateStore).build(unit, secret, () =>
        hooks.detachDisk(agent, secret),
      );
    } finally {
      await this.#destroyUnit(unit);
    }
  }

  async #warm(unit: Unit, hooks: ReadyHooks): Promise<WarmUnit> {
    const template = (await this.#templates?.find()) ?? (await this.#buildTemplate(hooks));
    const image = await this.#readyDiskOf(unit);
    await cloneDisk(this.#options.native, snapshotDisk(template.prepared), image);
    await unit.attachDisk(image);
    await unit.restore(template.prepared.dir);
    await this.#listens(unit, AGENT_RESTORE_MS);
    await hooks.prepare(unit.agent, template.secret);
    const identity = await hooks.assign(unit.agent, template.secret);
    await this.#keep(unit);
    return { unit, identity };
  }

  /** Where it is to be. */
  async #readyDiskOf(unit: Unit): Promise<string> {
    await mkdir(this.#readyDisks, { recursive: true, mode: 0o700 });
    return this.#readyDisk(unit.record.name);
  }

  /** As one was before a machine ran on it. */
  async #makeFreshDisk(image: string, diskMb: number): Promise<void> {
    await this.#hooks?.disk(image);
    if (diskMb > defaults.diskMb) await growDisk(image, diskMb);
  }

  /** `ahead`: for nobody yet, so that it gives way to all others until it is kept. `argv`: in place of the agent. */
  async #makeUnit(
    limits: CgroupLimits,
    {
      agentRootDir = this.#options.agentRoot.dir,
      agentPort = defaults.agentPort as number,
      ahead = false,
      argv = this.#options.agentRoot.argv,
    } = {},
  ): Promise<Unit> {
    const lease = await step("network slot", () => this.#options.network.lease());
    const name = `u${Buffer.from(this.#options.randomBytes(6)).toString("hex")}`;
    const environment = { ...this.#environment, agentRoot: { ...this.#options.agentRoot, argv } };
    const { runscVersion } = this.#options;
    const record = { name, slot: lease.slot, limits, agentRootDir, agentPort, runscVersion };
    const unit = new Unit(environment, record, lease);
    this.#units.set(name, unit);
    try {
      await unit.make(ahead ? "little" : "usual");
      await unit.cgroup.limit(withHeadroom(limits));
      return unit;
    } catch (error) {
      await this.#destroyUnit(unit);
      throw error;
    }
  }

  /** Disks of warm units: a machine's own from the moment it claims one. */
  get #readyDisks(): string {
    return join(this.#options.poolDir, "ready");
  }
  #readyDisk(unit: string): string {
    return join(this.#readyDisks, `${unit}.ext4`);
  }

  /** Those of an earlier service, whose warm units are gone. */
  async #sweepReadyDisks(): Promise<void> {
    await rm(this.#readyDisks, { recursive: true, force: true });
  }

  async #destroyUnit(unit: Unit): Promise<void> {
    await unit.destroy((slot) => this.#options.network.release(slot));
    await rm(this.#readyDisk(unit.record.name), { force: true });
    this.#units.delete(unit.record.name);
  }

  async #running(unit: Unit, id: string, secret: string | undefined, ms: number): Promise<RunningMachine> {
    await this.#listens(unit, ms);
    this.#exits.watch(unit, id);
    return unit.asMachine(id, secret);
  }

  #listens(unit: Unit, deadlineMs: number): Promise<void> {
    return agentListens(unit.agent.agentHost, unit.agent.agentPort, {
      deadlineMs,
      stillAlive: () => unit.isAlive(),
    });
  }

  async #find(files: MachineFiles): Promise<Unit | undefined> {
    const note = await readNote(files.dir);
    if (!note) return undefined;
    const known = this.#units.get(note.unit);
    if (known) return known;
    const record = await readUnit(this.#options, note.unit);
    if (!record) return undefined;
    const unit = await this.#reopen(record);
    this.#units.set(note.unit, unit);
    return unit;
  }

  async #reopen(record: UnitRecord): Promise<Unit> {
    const lease = await this.#options.network.adopt(record.slot);
    return new Unit(this.#environment, record, lease ?? goneLease(record.slot));
  }

  async #living(files: MachineFiles): Promise<Unit> {
    const unit = await this.#find(files);
    if (!unit) throw new ClocheError("failed_precondition", `machine ${files.id} does not run`);
    return unit;
  }
}
