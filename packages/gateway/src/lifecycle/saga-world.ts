/** What the steps of an operation work with (sagas.ts, machine-steps.ts). */
import { ClocheError, type SandboxState } from "@cloche/protocol";
import type { OperationGroup, OperationRecord } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import type { HostMachines } from "../hosts/fleet.ts";
import type { CallContext, HostCalls, HostError } from "../hosts/host-calls.ts";

/** The host refused this step, so the saga turns back; the message is public. */
export class TurnBack extends ClocheError {
  static because(error: HostError): TurnBack {
    return new TurnBack(error.code, error.message, { cause: error });
  }
}

/** What the steps work with; made anew for each attempt. */
export interface SagaWorld {
  operation: OperationRecord;
  /** Calls to the host of the record, or of `leaveLostHost`; throws `unavailable` while it is out of reach. */
  readonly host: HostCalls;
  /** That host was declared lost. It destroys its copy of a moved sandbox before it serves again. */
  readonly isHostLost: boolean;
  /**
   * Moves the record from that lost host to another, which `host` is from then on; returns the record. Throws NoRoom,
   * and an error that leaves the outcome unknown when the record has changed.
   */
  leaveLostHost(record: SandboxRecord): Promise<SandboxRecord>;
  readonly machines: HostMachines;
  readonly call: CallContext;
  nowMs: () => number;
  /** Runs a step, timed in the request's trace. Throws instead once the operation was replaced or dropped. */
  step(name: string, body: () => Promise<void>): Promise<void>;
  pause(ms: number): Promise<void>;
  /** The record, or undefined when it is gone. */
  read(): Promise<SandboxRecord | undefined>;
  /** Of another sandbox. */
  recordOf(sandboxId: string): Promise<SandboxRecord | undefined>;
  /**
   * Ends the operation in one transaction with the patch of the record, which must be in state `from`; does nothing
   * when the operation was ended or replaced before.
   */
  end(from: SandboxState, result: string, patch: (record: SandboxRecord) => SandboxPatch): Promise<void>;
  /** Runs `body`: in a group when its turn comes, else at once. */
  inTurn(body: () => Promise<void>): Promise<void>;
  /**
   * As `end`, for all sandboxes of the group in one transaction, once all have come here. Throws the failure that
   * turned the group back.
   */
  endTogether(
    group: OperationGroup,
    from: SandboxState,
    patch: (record: SandboxRecord) => SandboxPatch,
  ): Promise<void>;
  /** Ends the operation and removes the record. */
  endGone(from: SandboxState): Promise<void>;
  /** True when the caller still waits and gets the failure as its answer: then the record is removed. */
  refusedCaller(): boolean;
}
