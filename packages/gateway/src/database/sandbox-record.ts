import type { Egress, OnHostLoss, OnTimeout, PublicPorts, SandboxState } from "@cloche/protocol";
import type { SandboxRow } from "./schema.ts";

/** A sandbox as the gateway knows it. Times are Unix milliseconds. */
export interface SandboxRecord {
  id: string;
  teamId: string;
  ordinal: number;
  name: string;
  state: SandboxState;
  /** Grows by one with every write; every write names the generation that it read. */
  generation: number;
  hostId: string;
  runtime: string;
  template: string;
  cpus: number;
  memoryMb: number;
  diskMb: number;
  env: Record<string, string>;
  metadata: Record<string, string>;
  publicPorts: PublicPorts;
  egress: Egress;
  sourceSandboxId: string;
  sourceCheckpointId: string;
  errorMessage: string;
  /** When the sandbox first was RUNNING; from then on it has a domain. */
  firstRanAtMs: number | null;
  timeoutSeconds: number;
  expiresAtMs: number | null;
  onTimeout: OnTimeout;
  idleSuspendSeconds: number;
  autoResume: boolean;
  onHostLoss: OnHostLoss;
  /** 0: never. */
  checkpointEverySeconds: number;
  /** The stored image of the present suspension, StoredImage as JSON. Empty: the sandbox is not durable. */
  image: string;
  /** The service moves the sandbox to another host, where it will run again: requests wait. */
  isMoving: boolean;
  /** SUSPENDED or ERROR with a lost host, as errorMessage says, until the host is back. */
  isHostLost: boolean;
  /** Id of the API key that made it; empty: not known. */
  createdBy: string;
  createdAtMs: number;
  updatedAtMs: number;
}

/** True: memory and disk are in storage, and the sandbox will be resumed from there. */
export const isDurable = ({ state, image }: SandboxRecord): boolean =>
  state === "SANDBOX_STATE_SUSPENDED" && image !== "";

/** What another host needs to resume the sandbox; undefined: there is no stored image. */
export function imageOf({
  image,
}: Pick<SandboxRecord, "image">): { key: string; cpuClass: string } | undefined {
  if (image === "") return undefined;
  const { key = "", cpuClass = "" } = JSON.parse(image) as { key?: string; cpuClass?: string };
  return { key, cpuClass };
}

/** The fields that a write may change; the generation and `updatedAtMs` change by themselves. */
export type SandboxPatch = Partial<
  Pick<
    SandboxRecord,
    | "hostId"
    | "name"
    | "state"
    | "metadata"
    | "publicPorts"
    | "egress"
    | "errorMessage"
    | "firstRanAtMs"
    | "timeoutSeconds"
    | "expiresAtMs"
    | "onTimeout"
    | "idleSuspendSeconds"
    | "autoResume"
    | "onHostLoss"
    | "checkpointEverySeconds"
    | "image"
    | "isMoving"
    | "isHostLost"
    | "runtime"
  >
>;

export const sandboxFromRow = (row: SandboxRow): SandboxRecord => ({
  id: row.id,
  teamId: row.team_id,
  ordinal: row.ordinal,
  name: row.name,
  state: row.state as SandboxState,
  generation: row.generation,
  hostId: row.host_id,
  runtime: row.runtime,
  template: row.template,
  cpus: row.cpus,
  memoryMb: row.memory_mb,
  diskMb: row.disk_mb,
  env: JSON.parse(row.env) as Record<string, string>,
  metadata: JSON.parse(row.metadata) as Record<string, string>,
  publicPorts: JSON.parse(row.public_ports) as PublicPorts,
  egress: JSON.parse(row.egress) as Egress,
  sourceSandboxId: row.source_sandbox_id,
  sourceCheckpointId: row.source_checkpoint_id,
  errorMessage: row.error_message,
  firstRanAtMs: row.first_ran_at,
  timeoutSeconds: row.timeout_seconds,
  expiresAtMs: row.expires_at,
  onTimeout: row.on_timeout as OnTimeout,
  idleSuspendSeconds: row.idle_suspend_seconds,
  autoResume: row.auto_resume !== 0,
  onHostLoss: row.on_host_loss as OnHostLoss,
  checkpointEverySeconds: row.checkpoint_every_seconds,
  image: row.image,
  isMoving: row.is_moving !== 0,
  isHostLost: row.is_host_lost !== 0,
  createdBy: row.created_by,
  createdAtMs: row.created_at,
  updatedAtMs: row.updated_at,
});

export const sandboxToRow = (record: SandboxRecord): SandboxRow => ({
  id: record.id,
  team_id: record.teamId,
  ordinal: record.ordinal,
  name: record.name,
  state: record.state,
  generation: record.generation,
  host_id: record.hostId,
  runtime: record.runtime,
  template: record.template,
  cpus: record.cpus,
  memory_mb: record.memoryMb,
  disk_mb: record.diskMb,
  env: JSON.stringify(record.env),
  metadata: JSON.stringify(record.metadata),
  public_ports: JSON.stringify(record.publicPorts),
  egress: JSON.stringify(record.egress),
  source_sandbox_id: record.sourceSandboxId,
  source_checkpoint_id: record.sourceCheckpointId,
  error_message: record.errorMessage,
  first_ran_at: record.firstRanAtMs,
  timeout_seconds: record.timeoutSeconds,
  expires_at: record.expiresAtMs,
  on_timeout: record.onTimeout,
  idle_suspend_seconds: record.idleSuspendSeconds,
  auto_resume: record.autoResume ? 1 : 0,
  on_host_loss: record.onHostLoss,
  checkpoint_every_seconds: record.checkpointEverySeconds,
  // Set when the sandbox begins to run (record-rules.ts).
  checkpoint_due_at: null,
  image: record.image,
  is_moving: record.isMoving ? 1 : 0,
  is_host_lost: record.isHostLost ? 1 : 0,
  created_by: record.createdBy,
  created_at: record.createdAtMs,
  updated_at: record.updatedAtMs,
});
