/** What the steps of an operation work with (sagas.ts, machine-steps.ts). */
import { ClocheError, type SandboxState } from "@cloche/protocol";
import type { OperationGroup, OperationRecord } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import type { HostMachines } from "../hosts/fleet.ts";
import type { CallContext, HostCalls, HostError } from "./host-calls.ts";

/** The host decided against this step; the message is public. */
export class TurnBack extends ClocheError {
  static because(error: HostError): TurnBack {
    return new TurnBack(error.code, error.message, { cause: error });
  }
}

/** What the steps work with; made anew for each attempt. */
export interface SagaWorld {
  operation: OperationRecord;
  /** Of the host that the record named when the attempt began; throws `unavailable` while it cannot be reached. */
  readonly host: HostCalls;
  /** That host was declared lost: whatever it still has of the sandbox it destroys before it serves again. */
  readonly isHostLost: boolean;
  /**
   * Moves the record away from that host, which is lost, and takes the other one from here on; answers the record. Throws NoRoom, and what
   * means that nobody knows when the sandbox has moved on.
   */
  leaveLostHost(record: SandboxRecord): Promise<SandboxRecord>;
  readonly machines: HostMachines;
  readonly call: CallContext;
  nowMs: () => number;
  pause(ms: number): Promise<void>;
  /** The record, or undefined when it is gone. */
  read(): Promise<SandboxRecord | undefined>;
  /**
   * Ends the operation in one transaction with the patch of the record, which must be in state `from`; does nothing when the
   * operation was ended or replaced before.
   */
  end(from: SandboxState, result: string, patch: (record: SandboxRecord) => SandboxPatch): Promise<void>;
  /** Of a group: does `body` when its turn comes. Else at once. */
  inTurn(body: () => Promise<void>): Promise<void>;
  /** As `end`, of all sandboxes of the group in one transaction, once each has come so far; throws what turned the group back. */
  endTogether(
    group: OperationGroup,
    from: SandboxState,
    patch: (record: SandboxRecord) => SandboxPatch,
  ): Promise<void>;
  /** Ends the operation and removes the record. */
  endGone(from: SandboxState): Promise<void>;
  /** True when the caller still waits and takes the failure as its answer: then no record of the attempt stays. */
  tellCaller(): boolean;
}
