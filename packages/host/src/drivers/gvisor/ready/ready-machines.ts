/**
 * Makes a template, blank and warm units (ready-units.ts) and fresh disks ahead of requests, so that a new machine needs neither the
 * start of a sentry nor the boot of an agent. The driver also works without them.
 *
 * Owns the template and the ready units. After a crash these units belong to no machine and are swept.
 */
import { allDone, CleanupStack, type Log, step, Turns } from "@cloche/base";
import { ClocheError, defaults } from "@cloche/protocol";
import { cloneDisk, growDisk } from "../../../disk/disk.ts";
import type { Native } from "../../../sys/native.ts";
import {
  type MachineFiles,
  type MachineResources,
  type ReadyHooks,
  type ReadyMachines,
  type RunningMachine,
  snapshotDisk,
} from "../../driver.ts";
import { writeBootConfig } from "../boot-config.ts";
import type { MachineUnits } from "../machine-units.ts";
import { agentRestoreMs, agentStartMs, type Unit } from "../unit.ts";
import { claimedAtOnce, isDefaultShape, limitsOf, madeAheadAtOnce } from "../unit-limits.ts";
import type { Units } from "../units.ts";
import { makeRoomForReadyDisk } from "../ready-disks.ts";
import { ReadyUnits, type WarmUnit } from "./ready-units.ts";
import { memoryHeadroom } from "./memory-headroom.ts";
import { type Template, TemplateStore } from "./template.ts";

export interface ReadyMachinesOptions {
  units: Units;
  machines: MachineUnits;
  native: Native;
  poolDir: string;
  /** Units of the default shape kept ready, of each kind. */
  ready: number;
  /** The most kept ready of each kind, after a burst. */
  readyMost: number;
  /** Names the template by what it is made with (template.ts). */
  templateKey: string;
  /** Absent: only blank units are kept, no warm ones. */
  hooks: ReadyHooks | undefined;
  newSecret: () => string;
  log: Log;
}

export class GvisorReadyMachines implements ReadyMachines {
  readonly #options: ReadyMachinesOptions;
  readonly #templates: TemplateStore;
  readonly #units: ReadyUnits;
  readonly #claims = new Turns(claimedAtOnce());

  constructor(options: ReadyMachinesOptions) {
    this.#options = options;
    const { units, hooks, poolDir, native, templateKey, ready, readyMost, log } = options;
    this.#templates = new TemplateStore({ poolDir, key: templateKey, native });
    this.#units = new ReadyUnits({
      count: ready,
      most: readyMost,
      atOnce: madeAheadAtOnce(),
      memoryHeadroom,
      makeBlank: (shape = defaults) => units.make(limitsOf(shape), { ahead: true }),
      freeze: (unit, frozen) => (frozen ? keep(unit) : unit.freeze(false)),
      ...(hooks && { warm: (unit) => this.#warm(unit, hooks), offer: (all) => hooks.offer(all) }),
      destroy: (unit) => units.destroy(unit),
      log,
    });
  }

  start(): void {
    this.#units.start();
  }

  close(): Promise<void> {
    return this.#units.close();
  }

  settled(): Promise<void> {
    return this.#units.settled();
  }

  counts(): Record<string, number> {
    return this.#units.counts();
  }

  wanted(): Record<string, number> {
    return this.#units.wanted();
  }

  async claim(
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined> {
    if (!isDefaultShape(resources) || resources.diskMb !== defaults.diskMb) return undefined;
    await this.#options.machines.stop(files);
    return this.#units.first(async () => {
      const warm = await this.#units.takeWarm(files.id);
      return warm && this.#claim(warm, files, resources, given);
    });
  }

  async #claim(
    { unit, identity }: WarmUnit,
    files: MachineFiles,
    resources: MachineResources,
    given: (machine: RunningMachine) => Promise<void>,
  ): Promise<RunningMachine | undefined> {
    const { units, machines, log } = this.#options;
    const leave = await step("turn", () => this.#claims.enter());
    try {
      return await CleanupStack.guard(async (cleanup) => {
        const listens = unit.freeze(false).then(() => units.listens(unit, agentRestoreMs));
        listens.catch(() => undefined); // awaited below, whatever is thrown before
        await machines.give(unit, files, resources, cleanup);
        await unit.renameDisk(files.diskImage);
        const machine = unit.asMachine(files.id, identity.secret);
        await allDone([listens, given(machine)]);
        machines.watch(unit, files.id);
        return { ...machine, assignment: identity.assignment };
      });
    } catch (error) {
      // A ready machine may have ended while it waited: fall back to making one.
      log.warn({ err: error }, "a ready machine is broken; starting another");
      return undefined;
    } finally {
      leave();
    }
  }

  async freshDisk(files: MachineFiles, { diskMb }: MachineResources): Promise<boolean> {
    const template = await this.template();
    if (!template) return false;
    try {
      const image = await this.#templates.disk(template, diskMb);
      if (image === undefined) return false;
      await cloneDisk(this.#options.native, image, files.diskImage, { durable: false });
    } catch (error) {
      if (error instanceof ClocheError && error.code === "resource_exhausted") throw error;
      await this.dropTemplate(error);
      return false;
    }
    this.#options.machines.noteFresh(files.id, template.secret);
    return true;
  }

  template(): Promise<Template | undefined> {
    return this.#templates.find();
  }

  /** Drops a template that does not work, so that the next machines boot instead. */
  async dropTemplate(error: unknown): Promise<void> {
    this.#options.log.warn({ err: error }, "template does not work: booting instead");
    await this.#templates.drop();
  }

  /** While `make` makes a requested machine, no unit is made ahead. */
  first<Made>(make: () => Promise<Made>): Promise<Made> {
    return this.#units.first(make);
  }

  /** A blank unit of exactly that shape. `ofDefaultDisk`: a warm unit was asked for first. */
  takeBlank(resources: MachineResources, ofDefaultDisk: boolean): Promise<Unit | undefined> {
    if (!isDefaultShape(resources)) return this.#units.takeShaped(resources);
    return this.#units.takeBlank(ofDefaultDisk);
  }

  /** Makes a fresh disk, on which no machine has run. */
  async makeFreshDisk(image: string, diskMb: number): Promise<void> {
    await this.#options.hooks?.disk(image);
    if (diskMb > defaults.diskMb) await growDisk(image, diskMb);
  }

  /** Boots an agent, rehearses requests on a disk, and saves it with the disk and detached from it (template.ts). */
  async #buildTemplate(hooks: ReadyHooks): Promise<Template> {
    const { units, poolDir, newSecret } = this.#options;
    const unit = await units.make(limitsOf(defaults));
    try {
      const secret = newSecret();
      await writeBootConfig(unit.slotDir, secret);
      const image = await makeRoomForReadyDisk(poolDir, unit.record.name);
      await hooks.disk(image);
      await unit.attachDisk(image);
      await unit.start();
      await units.listens(unit, agentStartMs);
      const { agent } = unit;
      await hooks.prepare(agent, secret);
      await hooks.flush(agent, secret);
      return await this.#templates.build(unit, secret, () => hooks.detachDisk(agent, secret));
    } finally {
      await units.destroy(unit);
    }
  }

  async #warm(unit: Unit, hooks: ReadyHooks): Promise<WarmUnit> {
    const { units, native, poolDir } = this.#options;
    const template = (await this.template()) ?? (await this.#buildTemplate(hooks));
    const image = await makeRoomForReadyDisk(poolDir, unit.record.name);
    await cloneDisk(native, snapshotDisk(template.prepared), image);
    await unit.attachDisk(image);
    await unit.restore(template.prepared.dir);
    await units.listens(unit, agentRestoreMs);
    await hooks.prepare(unit.agent, template.secret);
    const identity = await hooks.assign(unit.agent, template.secret);
    await keep(unit);
    return { unit, identity };
  }
}

/** Freezes the unit until it is given out, and gives it the usual CPU weight. */
async function keep(unit: Unit): Promise<void> {
  await unit.freeze(true);
  await unit.cgroup.weighAsUsual();
}
