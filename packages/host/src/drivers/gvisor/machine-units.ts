/**
 * Assigns units to machines: notes the unit in <machine dir>/gvisor.json and the machine's id in the unit's record. From `give` until
 * `stop` the unit belongs to the machine, and from `watch` on its end is reported.
 */
import type { CleanupStack } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { MachineFiles, MachineResources, RunningMachine } from "../driver.ts";
import type { NetworkSlots } from "../network-slots.ts";
import { readNote, removeNote, writeNote } from "./machine-note.ts";
import type { Unit } from "./unit.ts";
import type { Units } from "./units.ts";
import type { ExitWatch } from "./watch/exit-watch.ts";

export class MachineUnits {
  readonly #units: Units;
  readonly #exits: ExitWatch;
  readonly #network: NetworkSlots;
  /** By machine with an unused clone of a template's disk: that template's secret. In memory only: after a crash the disk may be used. */
  readonly #fresh = new Map<string, string>();

  constructor(units: Units, exits: ExitWatch, network: NetworkSlots) {
    this.#units = units;
    this.#exits = exits;
    this.#network = network;
  }

  /** From here on the unit belongs to that machine. */
  async give(
    unit: Unit,
    files: MachineFiles,
    resources: MachineResources,
    cleanup: CleanupStack,
  ): Promise<void> {
    cleanup.push("machine", () => this.stop(files));
    cleanup.push("unit", () => this.#units.destroy(unit));
    unit.record.machineId = files.id;
    unit.save();
    await writeNote(files.dir, { unit: unit.record.name });
    if (resources.teamId) await this.#network.setTeamOf(unit.lease.agentHost, resources.teamId);
    if (resources.egress) await this.#network.setEgressOf(unit.lease.agentHost, resources.egress);
  }

  /** Reports the unit's end from now on. */
  watch(unit: Unit, id: string): void {
    this.#exits.watch(unit, id);
  }

  /** Answers the running machine once its agent listens. */
  async running(unit: Unit, id: string, secret: string | undefined, ms: number): Promise<RunningMachine> {
    await this.#units.listens(unit, ms);
    this.watch(unit, id);
    return unit.asMachine(id, secret);
  }

  async find(files: MachineFiles): Promise<Unit | undefined> {
    const note = await readNote(files.dir);
    return note && (await this.#units.find(note.unit));
  }

  async living(files: MachineFiles): Promise<Unit> {
    const unit = await this.find(files);
    if (!unit) throw new ClocheError("failed_precondition", `machine ${files.id} does not run`);
    return unit;
  }

  /** Notes that the machine's disk is an unused clone of the disk of the template with this secret. */
  noteFresh(id: string, secret: string): void {
    this.#fresh.set(id, secret);
  }

  freshSecret(id: string): string | undefined {
    return this.#fresh.get(id);
  }

  /** Repeatable. */
  async stop(files: MachineFiles): Promise<void> {
    this.#exits.unwatch(files.id);
    this.#fresh.delete(files.id);
    const unit = await this.find(files);
    if (unit) await this.#units.destroy(unit);
    await removeNote(files.dir);
  }
}
