/**
 * Machines that the database does not know. A sandbox's record is written before its machine is made, and its removal is noted
 * (`removed_sandboxes`). So a machine without a record whose removal is not noted proves that the database is older than the machine
 * (a backup was restored) or is another one. It is kept, with its disk, memory and checkpoints, until an operator adopts or deletes it:
 *
 *   found ──keeps──▶ orphan ──adopt──▶ a sandbox again
 *                      └─────remove──▶ noted as removed; the next comparison destroys it
 *
 * In a cluster the record may name another host than the one that has the machine. Then the newer of both counts: a machine knows the
 * generation of its record when its host was last told its policy, which a moved machine is when it moves.
 *
 * The set of orphans is only for the metric and the log; every decision reads the database.
 */
import type { Clock, Log } from "@cloche/base";
import {
  ClocheError,
  type Egress,
  egressModes,
  limits,
  parseAllowedCidr,
  parseAllowedDomain,
  type SandboxState,
} from "@cloche/protocol";
import { type Machine, MachinePhase, type MachineSpec } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog } from "./audit-log.ts";
import type { CallContext } from "../hosts/host-calls.ts";
import type { Records } from "./records.ts";

export interface OrphansNeeds {
  database: Database;
  records: Records;
  fleet: Fleet;
  audit: AuditLog;
  clock: Clock;
  log: Log;
}

/** A machine without a sandbox, for an operator. */
export interface Orphan {
  id: string;
  hostId: string;
  teamId: string;
  name: string;
  phase: string;
  runtime: string;
  cpus: number;
  memoryMb: number;
  diskMb: number;
  /** Unix milliseconds; 0: unknown. */
  runningSinceMs: number;
}

/** Whether the host knows a newer generation of the record than the database: the database was restored. */
export const isOlder = (record: SandboxRecord, machine: Machine): boolean =>
  machine.revision > record.generation;

export class Orphans {
  readonly #needs: OrphansNeeds;
  readonly #seen = new Set<string>();

  constructor(needs: OrphansNeeds) {
    this.#needs = needs;
  }

  /** Machines that comparisons found and kept. */
  get count(): number {
    return this.#seen.size;
  }

  isKept(hostId: string, sandboxId: string): boolean {
    return this.#seen.has(keyOf(hostId, sandboxId));
  }

  /** Whether the machine, which no sandbox has on this host, must not be destroyed. `record` names another host. */
  async keeps(hostId: string, machine: Machine, record: SandboxRecord | undefined): Promise<boolean> {
    const { sandboxId } = machine;
    const isOrphan = await this.#isOrphan(machine, record);
    if (!isOrphan) this.gone(hostId, sandboxId);
    else if (!this.isKept(hostId, sandboxId)) {
      this.#seen.add(keyOf(hostId, sandboxId));
      const fields = { sandbox_id: sandboxId, host_id: hostId, team_id: machine.teamId };
      this.#needs.log.error(
        fields,
        "the database does not know this machine, which is newer; it is kept: adopt or delete it with cloche orphans",
      );
    }
    return isOrphan;
  }

  gone(hostId: string, sandboxId: string): void {
    this.#seen.delete(keyOf(hostId, sandboxId));
  }

  /** Of the hosts that this gateway reaches. */
  async list(): Promise<Orphan[]> {
    const { fleet } = this.#needs;
    const found: Orphan[] = [];
    for (const hostId of fleet.ids().filter((id) => !fleet.isCluster || fleet.isSyncedWith(id))) {
      const machines = await fleet.calls(hostId).list(commandCall());
      for (let start = 0; start < machines.length; start += gatewayLimits.recordsPage)
        found.push(...(await this.#among(hostId, machines.slice(start, start + gatewayLimits.recordsPage))));
    }
    return found;
  }

  /** Makes the machine a sandbox again, of its own team or of `teamId`. Labels, ports and times of the lost record are not known. */
  async adopt(sandboxId: string, teamId: string): Promise<Orphan> {
    const { database, records, audit, clock } = this.#needs;
    const { orphan, machine, record } = await this.#find(sandboxId);
    if (machine.phase !== MachinePhase.RUNNING && machine.phase !== MachinePhase.SUSPENDED)
      throw new ClocheError(
        "failed_precondition",
        `the machine of ${sandboxId} is ${orphan.phase}; only one that is running or suspended can be adopted: delete it, or try again later`,
      );
    const team = await database.teams.get(teamId || orphan.teamId);
    if (team === undefined)
      throw new ClocheError(
        "failed_precondition",
        `the database has no team ${teamId || orphan.teamId}: name the team that gets ${sandboxId} with --team (cloche teams)`,
      );
    const caller = { teamId: team.id, actor: "system:operator", requestId: "" };
    const entry = audit.entry(
      caller,
      "sandbox.adopt",
      sandboxId,
      "ok",
      "the database did not know its machine",
    );
    if (record === undefined) {
      // The comparison that follows corrects the state of a running machine.
      const adopted = recordOf(machine, orphan, team.id, {
        ordinal: (await database.sandboxes.lastOrdinal()) + 1,
        nowMs: clock.nowMs(),
      });
      await records.insert([{ record: adopted, audit: entry }]);
    } else {
      const write = { audit: entry, generationMin: machine.revision + 1 };
      if ((await records.change(record, { hostId: orphan.hostId }, write)) === undefined)
        throw new ClocheError("aborted", `sandbox ${sandboxId} changed meanwhile; try again`);
    }
    this.gone(orphan.hostId, sandboxId);
    return { ...orphan, teamId: team.id };
  }

  /** Notes the machine as removed, so that the comparison that follows destroys it. */
  async remove(sandboxId: string): Promise<Orphan> {
    const { database, clock, log, fleet } = this.#needs;
    const { orphan, record } = await this.#find(sandboxId);
    log.warn({ sandbox_id: sandboxId, host_id: orphan.hostId }, "an operator deletes this machine");
    if (record === undefined) await database.sandboxes.noteRemoved(sandboxId, clock.nowMs());
    await fleet.calls(orphan.hostId).destroy(sandboxId, commandCall());
    fleet.machinesOf(orphan.hostId).forget(sandboxId);
    this.gone(orphan.hostId, sandboxId);
    return orphan;
  }

  async #isOrphan(machine: Machine, record: SandboxRecord | undefined): Promise<boolean> {
    if (record !== undefined) return isOlder(record, machine);
    return !(await this.#needs.database.sandboxes.wasRemoved(machine.sandboxId));
  }

  async #among(hostId: string, machines: readonly Machine[]): Promise<Orphan[]> {
    const { database, fleet } = this.#needs;
    const ids = machines.map(({ sandboxId }) => sandboxId);
    const records = new Map((await database.sandboxes.some(ids)).map((record) => [record.id, record]));
    const found: Orphan[] = [];
    for (const machine of machines) {
      const record = records.get(machine.sandboxId);
      const isElsewhere = record?.hostId !== hostId;
      if (!isElsewhere || !(await this.#isOrphan(machine, record))) continue;
      const whole = await fleet.calls(hostId).find(machine.sandboxId, commandCall());
      if (whole !== undefined) found.push(shown(hostId, whole));
    }
    return found;
  }

  async #find(
    sandboxId: string,
  ): Promise<{ orphan: Orphan; machine: Machine; record: SandboxRecord | undefined }> {
    const { database, fleet } = this.#needs;
    const orphans = (await this.list()).filter(({ id }) => id === sandboxId);
    const [orphan] = orphans;
    if (orphan === undefined)
      throw new ClocheError(
        "not_found",
        `no machine without a sandbox is ${sandboxId}; cloche orphans lists them`,
      );
    const machine = await fleet.calls(orphan.hostId).find(sandboxId, commandCall());
    if (machine === undefined) throw new ClocheError("not_found", `the machine of ${sandboxId} is gone`);
    return { orphan, machine, record: await database.sandboxes.get(sandboxId) };
  }
}

/** An operator's command is not cut off; every call to a host has its own deadline. */
const commandCall = (): CallContext => ({ signal: new AbortController().signal, requestId: "" });

const keyOf = (hostId: string, sandboxId: string): string => `${hostId}/${sandboxId}`;

const shown = (hostId: string, machine: Machine): Orphan => ({
  id: machine.sandboxId,
  hostId,
  teamId: machine.teamId,
  name: machine.spec?.name ?? "",
  phase: MachinePhase[machine.phase].toLowerCase(),
  runtime: machine.runtime,
  cpus: machine.cpus,
  memoryMb: machine.memoryMb,
  diskMb: machine.diskMb,
  runningSinceMs: Number(machine.runningSinceUnixMs),
});

/** The policy of a machine as the record has it; undefined: the host was told none, or says one that no sandbox can have. */
export function egressIn({ egress }: MachineSpec): Egress | undefined {
  const mode = egressModes.find((one) => one === egress?.mode);
  if (egress === undefined || mode === undefined) return undefined;
  const { domains, cidrs } = egress;
  if (domains.length > limits.egressDomains || cidrs.length > limits.egressCidrs) return undefined;
  const isRight =
    domains.every((one) => parseAllowedDomain(one) !== undefined) &&
    cidrs.every((one) => parseAllowedCidr(one) !== undefined);
  return isRight ? { mode, domains, cidrs } : undefined;
}

/** The network is open for a machine that was told no policy, and shut for one whose policy is not valid here. */
function egressOfAdopted(spec: MachineSpec | undefined): Egress {
  const mode = spec?.egress === undefined ? "open" : "none";
  return (spec && egressIn(spec)) ?? { mode, domains: [], cidrs: [] };
}

function recordOf(
  machine: Machine,
  orphan: Orphan,
  teamId: string,
  { ordinal, nowMs }: { ordinal: number; nowMs: number },
): SandboxRecord {
  const { spec } = machine;
  return {
    id: orphan.id,
    teamId,
    ordinal,
    name: orphan.name,
    state: "SANDBOX_STATE_SUSPENDED" satisfies SandboxState,
    generation: machine.revision + 1,
    hostId: orphan.hostId,
    runtime: orphan.runtime,
    template: spec?.template ?? "",
    cpus: orphan.cpus,
    memoryMb: orphan.memoryMb,
    diskMb: orphan.diskMb,
    env: spec?.env ?? {},
    metadata: {},
    publicPorts: [],
    egress: egressOfAdopted(spec),
    sourceSandboxId: "",
    sourceCheckpointId: spec?.checkpointId ?? "",
    errorMessage: machine.errorMessage,
    firstRanAtMs: orphan.runningSinceMs || nowMs,
    timeoutSeconds: 0,
    expiresAtMs: null,
    onTimeout: "delete",
    idleSuspendSeconds: spec?.idleSuspendSeconds ?? 0,
    autoResume: true,
    onHostLoss: "error",
    checkpointEverySeconds: 0,
    image: "",
    createdBy: "",
    isMoving: false,
    isHostLost: false,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
  };
}
