/** Records with every field set, for tests of the database. */
import { randomBytes } from "node:crypto";
import { newSandboxId, openEgress } from "@cloche/protocol";
import type { AuditEntry } from "../database/audit.ts";
import type { OperationRecord } from "../database/operations.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";

const atMs = Date.UTC(2026, 0, 1);
let made = 0;

export function aSandbox(changes: Partial<SandboxRecord> = {}): SandboxRecord {
  made += 1;
  return {
    id: newSandboxId(randomBytes),
    teamId: "team-a",
    ordinal: made,
    name: "name",
    state: "SANDBOX_STATE_CREATING",
    generation: 1,
    hostId: "local",
    runtime: "gvisor",
    template: "base",
    cpus: 2,
    memoryMb: 1_024,
    diskMb: 8_192,
    env: {},
    metadata: {},
    publicPorts: [],
    sourceSandboxId: "",
    sourceCheckpointId: "",
    egress: openEgress,
    errorMessage: "",
    firstRanAtMs: null,
    timeoutSeconds: 0,
    expiresAtMs: null,
    onTimeout: "delete",
    idleSuspendSeconds: 0,
    autoResume: false,
    onHostLoss: "error",
    checkpointEverySeconds: 0,
    image: "",
    isMoving: false,
    isHostLost: false,
    createdBy: "key-1",
    createdAtMs: atMs,
    updatedAtMs: atMs,
    ...changes,
  };
}

export function anOperation(changes: Partial<OperationRecord> = {}): OperationRecord {
  made += 1;
  return {
    id: `op-${made}`,
    sandboxId: "sbx-none",
    kind: "create",
    direction: "forward",
    input: {},
    failure: "",
    actor: "key-1",
    requestId: "req-1",
    createdAtMs: atMs,
    updatedAtMs: atMs,
    owner: "",
    attempt: 1,
    number: 1,
    ...changes,
  };
}

export function anAuditEntry(changes: Partial<AuditEntry> = {}): AuditEntry {
  made += 1;
  return {
    id: `aud-${String(made).padStart(9, "0")}`,
    atMs,
    teamId: "team-a",
    actor: "key-1",
    action: "sandbox.create",
    subject: "sbx-none",
    requestId: "req-1",
    result: "ok",
    detail: "",
    ...changes,
  };
}
