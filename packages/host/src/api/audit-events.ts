/**
 * Audit events of the data plane routes that the host answers. The gateway keeps them in the team's audit log.
 */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "@cloche/base";
import { AuditEventSchema } from "@cloche/protocol/host";
import type { Machines } from "../machines/machines.ts";

export interface DataPlaneCaller {
  teamId: string;
  /** `token:` and the token's id. */
  actor: string;
  requestId: string;
}

export interface AuditedCall {
  action: string;
  /** Sandbox or checkpoint id. */
  subject: string;
  detail: string;
}

const textMax = 300;

/** `result`: `ok`, or an error code. */
export function noteAuditEvent(
  { machines, clock }: { machines: Machines; clock: Clock },
  caller: DataPlaneCaller,
  audited: AuditedCall,
  result: string,
): void {
  const atUnixMs = BigInt(clock.nowMs());
  const { action, subject, detail } = audited;
  const bounded = { action, subject: subject.slice(0, textMax), detail: detail.slice(0, textMax) };
  machines.events.note(create(AuditEventSchema, { ...caller, ...bounded, result, atUnixMs }));
}
