/**
 * Decides on which host a suspended sandbox is resumed, and where a sandbox goes whose host was lost.
 *
 *   its host is open               there; elsewhere if it has no room
 *   cordoned or draining           elsewhere; there if no other host has room
 *   lost, or not admitted yet      elsewhere
 *
 * Only a durable sandbox can be resumed elsewhere. The compare-and-set that reserves room on the new host also changes
 * the record's host. The copy left behind is destroyed when a comparison finds it.
 *
 * The suspended source of a fork goes as the table says, but never stays on a host that takes no new sandboxes or does
 * not answer.
 */
import type { Clock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { OperationRecord } from "../database/operations.ts";
import { NoRoom, type Room } from "../database/host-reservations.ts";
import { imageOf, type SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { Need, Placement } from "../hosts/placement.ts";
import { gatewayLimits } from "../limits.ts";
import { type CallContext, HostError } from "../hosts/host-calls.ts";
import {
  forkWaitsForAnswer,
  forkWaitsForHost,
  forkWaitsForStorage,
  waitsForHost,
} from "./host-loss-messages.ts";
import type { Records } from "./records.ts";

export interface Place {
  hostId: string;
  /** In a cluster: the room that the host must have. */
  room?: Room;
}

export interface RelocationDependencies {
  fleet: Pick<Fleet, "isCluster" | "row" | "rows" | "calls">;
  placement: Placement;
  records: Records;
  clock: Pick<Clock, "nowMs">;
}

export class Relocation {
  readonly #needs: RelocationDependencies;

  constructor(needs: RelocationDependencies) {
    this.#needs = needs;
  }

  /**
   * Calls `write`, which moves the SUSPENDED record to RESUMING, with the chosen host; again with another host while it
   * throws NoRoom. Throws `unavailable` when there is no host for it.
   */
  async resume<T>(record: SandboxRecord, write: (place: Place) => Promise<T>): Promise<T> {
    const { fleet, placement } = this.#needs;
    const { hostId } = record;
    if (!fleet.isCluster) return await write({ hostId });
    const stay = (): Promise<T> => write({ hostId, room: "kept" });
    const own = this.#own(record);
    if (record.image === "") {
      if (own === "never")
        throw new ClocheError("unavailable", `sandbox ${JSON.stringify(record.id)} waits: ${waitsForHost}`, {
          retryAfterSeconds: gatewayLimits.noHostRetrySeconds,
        });
      return await stay();
    }
    if (own === "first") {
      const found = await withRoom(stay);
      if (found !== undefined) return found.answer;
    }
    const elsewhere = (): Promise<T> =>
      placement.place((choose) => write({ hostId: choose(this.#need(record)), room: "new" }));
    if (own !== "last") return await elsewhere();
    return (await withRoom(elsewhere))?.answer ?? (await stay());
  }

  /**
   * Moves the record from its lost host to another one, and returns it; undefined: the record has changed, or the lost
   * host is back. Throws NoRoom.
   */
  async leaveLost(record: SandboxRecord, turn: OperationRecord): Promise<SandboxRecord | undefined> {
    const { placement, records } = this.#needs;
    return await placement.place(async (choose) => {
      const hostId = choose(this.#need(record));
      const during = { ...turn, input: { ...turn.input, movedFrom: record.hostId } };
      return await records.change(record, { hostId }, { room: "new", leavesLostHost: true, during });
    });
  }

  /**
   * Answers the source of a fork, on a host that takes new sandboxes and answers. If the host of a suspended source is
   * lost, cordoned or draining, or does not answer, its record is moved to another host; the fork imports its image there
   * (machine-steps.ts). Undefined: the sandbox has changed; read it again. Throws `unavailable` if it runs or is not
   * durable, and NoRoom.
   */
  async sourceOfFork(record: SandboxRecord, call: CallContext): Promise<SandboxRecord | undefined> {
    const { fleet, placement, records } = this.#needs;
    if (!fleet.isCluster) return record;
    const own = this.#own(record);
    const stays = own === "first" || record.state !== "SANDBOX_STATE_SUSPENDED";
    if (stays && (await this.#answers(record, call))) return record;
    if (record.image === "") {
      const message = own === "never" ? forkWaitsForHost : stays ? forkWaitsForAnswer : forkWaitsForStorage;
      throw new ClocheError("unavailable", `source_sandbox_id: ${message}`, {
        retryAfterSeconds: gatewayLimits.noHostRetrySeconds,
      });
    }
    const hostId = placement.choose(this.#need(record), new Set([record.hostId]));
    return await records.change(record, { hostId });
  }

  /**
   * Whether the record's host answers. A fork that begins on a host that is gone ends in ERROR once the host is lost. A host
   * that left on purpose, as for an upgrade, is back soon: operations wait for it.
   */
  async #answers({ id, hostId }: SandboxRecord, call: CallContext): Promise<boolean> {
    const { fleet, clock } = this.#needs;
    const leaseUntilMs = fleet.row(hostId)?.leaseUntilMs ?? 0;
    if (leaseUntilMs > clock.nowMs() + gatewayLimits.hostLostMs) return true;
    const late = AbortSignal.timeout(gatewayLimits.hostAnswerMs);
    try {
      await fleet.calls(hostId).find(id, { ...call, signal: AbortSignal.any([call.signal, late]) });
      return true;
    } catch (error) {
      call.signal.throwIfAborted();
      return error instanceof HostError && !error.isPassing;
    }
  }

  #own(record: SandboxRecord): "first" | "last" | "never" {
    const row = this.#needs.fleet.row(record.hostId);
    if (row === undefined || row.isLost || row.awaitsAdmission) return "never";
    return row.state === "open" ? "first" : "last";
  }

  /** Prefers hosts of the image's CPU class: elsewhere the memory cannot be restored, and the disk is started. */
  #need(record: SandboxRecord): Need {
    const { memoryMb, runtime, template } = record;
    const cpuClass = imageOf(record)?.cpuClass ?? "";
    if (cpuClass === "") return { memoryMb, runtime, template };
    const alike = [...this.#needs.fleet.rows().values()].filter((row) => row.cpuClass === cpuClass);
    return { memoryMb, runtime, template, preferred: alike.map(({ id }) => id) };
  }
}

/** Undefined: there was no room. */
async function withRoom<T>(write: () => Promise<T>): Promise<{ answer: T } | undefined> {
  try {
    return { answer: await write() };
  } catch (error) {
    if (error instanceof NoRoom) return undefined;
    throw error;
  }
}
