/**
 * Makes, finds and destroys the units of one driver. machine-units.ts keeps which unit belongs to which machine.
 *
 * Owns <runDir>/units and <runDir>/slots. Survives a crash: each unit's directory has its record, which is trusted only if the
 * process with that pid and start time lives.
 */
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { eachLimited, step } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import { agentListens } from "../../agent-calls/agent-listens.ts";
import { childGroups, type CgroupLimits } from "../cgroup.ts";
import type { NetworkSlots } from "../network-slots.ts";
import { readyDisk } from "./ready-disks.ts";
import { goneLease, readUnit, Unit, type UnitEnvironment, type UnitRecord, unknownUnit } from "./unit.ts";
import { withHeadroom } from "./unit-limits.ts";

export interface UnitsOptions extends UnitEnvironment {
  runscVersion: string;
  network: NetworkSlots;
  /** Reflink pool. */
  poolDir: string;
  randomBytes: (length: number) => Uint8Array;
}

export class Units {
  readonly #options: UnitsOptions;
  readonly #units = new Map<string, Unit>();

  constructor(options: UnitsOptions) {
    this.#options = options;
  }

  /**
   * `ahead`: not requested yet, so it has a low CPU weight until it is kept ready. `argv`: a command instead of the agent; such a
   * unit never becomes a machine, and the guard of the lease lets it run because of its name.
   */
  async make(
    limits: CgroupLimits,
    {
      agentRootDir = this.#options.agentRoot.dir,
      agentPort = defaults.agentPort as number,
      ahead = false,
      argv,
    }: { agentRootDir?: string; agentPort?: number; ahead?: boolean; argv?: readonly string[] } = {},
  ): Promise<Unit> {
    const lease = await step("network slot", () => this.#options.network.lease());
    const name = `${argv === undefined ? "u" : "probe-"}${Buffer.from(this.#options.randomBytes(6)).toString("hex")}`;
    const { agentRoot } = this.#options;
    const environment = { ...this.#options, agentRoot: { ...agentRoot, argv: argv ?? agentRoot.argv } };
    const { runscVersion } = this.#options;
    const record = { name, slot: lease.slot, limits, agentRootDir, agentPort, runscVersion };
    const unit = new Unit(environment, record, lease);
    this.#units.set(name, unit);
    try {
      await unit.make(ahead ? "little" : "usual");
      await unit.cgroup.limit(withHeadroom(limits));
      return unit;
    } catch (error) {
      await this.destroy(unit);
      throw error;
    }
  }

  async find(name: string): Promise<Unit | undefined> {
    const known = this.#units.get(name);
    if (known) return known;
    const record = await readUnit(this.#options, name);
    if (!record) return undefined;
    const unit = await this.#reopen(record);
    this.#units.set(name, unit);
    return unit;
  }

  async #reopen(record: UnitRecord): Promise<Unit> {
    const lease = await this.#options.network.adopt(record.slot);
    return new Unit(this.#options, record, lease ?? goneLease(record.slot));
  }

  async destroy(unit: Unit): Promise<void> {
    await unit.destroy((slot) => this.#options.network.release(slot));
    await rm(readyDisk(this.#options.poolDir, unit.record.name), { force: true });
    this.#units.delete(unit.record.name);
  }

  listens(unit: Unit, deadlineMs: number): Promise<void> {
    return agentListens(unit.agent.agentHost, unit.agent.agentPort, {
      deadlineMs,
      stillAlive: () => unit.isAlive(),
    });
  }

  /** Destroys units of machines not in `keep`, and the remains of unknown units. Answers their names. */
  async sweep(keep: ReadonlySet<string>): Promise<string[]> {
    const swept: string[] = [];
    const names = new Set([
      ...(await readdir(join(this.#options.runDir, "units")).catch(() => [])),
      ...(await childGroups(`/cloche-${this.#options.tag}`)),
    ]);
    // Limited: a pool that had grown may have left many.
    await eachLimited([...names], async (name) => {
      const own = this.#units.get(name);
      // Made by this driver and without a machine: it is being made, or kept ready.
      if (own && own.record.machineId === undefined) return;
      const record = await readUnit(this.#options, name);
      if (record?.machineId !== undefined && keep.has(record.machineId)) return;
      const unit = own ?? (await this.#reopen(record ?? unknownUnit(name)));
      await this.destroy(unit);
      swept.push(name);
    });
    return swept;
  }
}
