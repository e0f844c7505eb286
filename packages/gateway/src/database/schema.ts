/**
 * The tables. Only types that SQLite and PostgreSQL share: text, integers, doubles. Times are Unix milliseconds,
 * booleans 0 or 1, objects JSON text.
 */
import type { Generated } from "kysely";

export interface TeamRow {
  id: string;
  name: string;
  created_at: number;
  /** How many sandboxes the team has, without those in DELETING. */
  sandboxes: number;
}

export interface ApiKeyRow {
  id: string;
  team_id: string;
  name: string;
  /** First characters of the secret, to recognise it. */
  prefix: string;
  /** SHA-256 of the secret, hex. */
  secret_hash: string;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  last_used_at: number | null;
}

export interface SandboxRow {
  id: string;
  team_id: string;
  /** Grows with every sandbox: the order of lists. */
  ordinal: number;
  name: string;
  state: string;
  generation: number;
  host_id: string;
  runtime: string;
  template: string;
  cpus: number;
  memory_mb: number;
  disk_mb: number;
  env: string;
  metadata: string;
  public_ports: string;
  egress: string;
  source_sandbox_id: string;
  source_checkpoint_id: string;
  error_message: string;
  first_ran_at: number | null;
  timeout_seconds: number;
  expires_at: number | null;
  /** `delete` or `suspend`. */
  on_timeout: string;
  idle_suspend_seconds: number;
  auto_resume: number;
  /** `error` or `restart_from_checkpoint`. */
  on_host_loss: string;
  checkpoint_every_seconds: number;
  /**
   * When the next automatic checkpoint is due; null: none. A write of it alone does not change the record's generation.
   */
  checkpoint_due_at: number | null;
  /** StoredImage as JSON; empty: none. */
  image: string;
  is_moving: number;
  is_host_lost: number;
  /** Id of the API key that made it; empty: not known. */
  created_by: string;
  created_at: number;
  updated_at: number;
}

/** A copy of the sandbox's metadata that can be searched. */
export interface SandboxMetadataRow {
  sandbox_id: string;
  key: string;
  value: string;
}

export interface OperationRow {
  /** At most one operation per sandbox; a delete takes the place of any other. */
  sandbox_id: string;
  id: string;
  kind: string;
  direction: string;
  begun: string;
  input: string;
  failure: string;
  actor: string;
  request_id: string;
  created_at: number;
  updated_at: number;
  /** The gateway that runs the operation, while its lease holds; empty: the database has only one gateway. */
  owner: string;
  /** By the database's clock. */
  lease_until: number;
  /** Grows with each owner. */
  attempt: number;
  /** The record's generation when the operation began. */
  number: number;
}

export interface PortLinkRow {
  /** SHA-256 of the link's token, hex. */
  token_hash: string;
  sandbox_id: string;
  team_id: string;
  port: number;
  expires_at: number;
}

/** Secrets of the installation, by name. */
export interface SecretRow {
  name: string;
  /** Text that may go into a column: hex, or sealed. */
  value: string;
}

/** A one-time link to a file that was used. */
export interface UsedFileLinkRow {
  id: string;
  sandbox_id: string;
  expires_at: number;
}

/** What the first call with an idempotency key made. Outlives its sandboxes. */
export interface IdempotencyKeyRow {
  team_id: string;
  key: string;
  /** SHA-256 of the method and the other fields, hex. */
  request_hash: string;
  /** The first of `sandbox_ids`. */
  sandbox_id: string;
  sandbox_ids: string;
  expires_at: number;
}

export interface AuditRow {
  id: string;
  at: number;
  team_id: string;
  actor: string;
  action: string;
  subject: string;
  request_id: string;
  result: string;
  detail: string;
}

/** A time in which a sandbox was RUNNING. Outlives the sandbox. */
export interface UsageIntervalRow {
  id: string;
  sandbox_id: string;
  team_id: string;
  cpus: number;
  memory_mb: number;
  sandbox_name: string;
  /** Of the sandbox. */
  created_by: string;
  started_at: number;
  /** When its machine was last known to run. */
  seen_at: number;
  /** Null: it runs. */
  ended_at: number | null;
}

/** The owner of the database. At most one row. */
export interface OwnerRow {
  /** Always 1. */
  id: number;
  installation: string;
  home: string;
  host: string;
  machine: string;
  session: string;
  claimed_at: number;
  seen_at: number;
}

/** A host of a cluster and its lease. Empty on a single machine. */
export interface HostRow {
  id: string;
  /** Names the process that holds the lease: each registration takes the next. */
  generation: number;
  /** By the database's clock, as `lost_at`. */
  lease_until: number;
  /** When a gateway declared the host lost; null: it is not lost. */
  lost_at: number | null;
  address: string;
  cpu_class: string;
  capacity_memory_mb: number;
  reserved_memory_mb: number;
  /** `open`, `cordoned` or `draining`. */
  state: string;
  version: string;
  /** JSON: a list, the default first. */
  runtimes: string;
  /** 1: the host registered again after its loss, and was not yet told which machines are still its own. */
  awaits_admission: number;
}

/** Which gateway watches a host (hosts/host-watches.ts), while its lease holds. */
export interface HostWatchRow {
  host_id: string;
  watcher: string;
  /** By the database's clock. */
  watch_until: number;
}

/** One of several gateways on this database. */
export interface GatewayRow {
  /** Names one process. */
  owner: string;
  /** By the database's clock. */
  lease_until: number;
}

/** A change of a record, for other gateways. */
export interface ChangeRow {
  sequence: Generated<number>;
  sandbox_id: string;
  /** By the database's clock. */
  at: number;
}

/** A manifest in storage, or the folder of an image. */
export interface StoredNameRow {
  name: string;
  /** The host that holds or held the name. */
  host_id: string;
  /** The sandbox whose image this is; empty: not an image. */
  sandbox_id: string;
  /** 0: held until `keep_until`. */
  is_named: number;
  keep_until: number;
}

/** A pack that a manifest or an image needs. */
export interface StoredPackRow {
  pack_id: string;
  name: string;
  bytes: number;
}

export interface CheckpointRow {
  id: string;
  team_id: string;
  sandbox_id: string;
  /** RFC 3339: the order of lists. */
  created_at: string;
  size_bytes: number;
  header: string;
}

/** A key to be removed from storage. A key that ends in `/` stands for all below it. */
export interface StorageGarbageRow {
  key: string;
  at: number;
}

/** One row: the host that sweeps. */
export interface StorageSweepRow {
  id: number;
  host_id: string;
  lease_until: number;
  /** When the whole store was listed last. */
  listed_at: number;
}

/** A sandbox whose record was removed: its machine, wherever one is left, may be destroyed. */
export interface RemovedSandboxRow {
  id: string;
  removed_at: number;
}

export interface Schema {
  teams: TeamRow;
  api_keys: ApiKeyRow;
  sandboxes: SandboxRow;
  sandbox_metadata: SandboxMetadataRow;
  operations: OperationRow;
  port_links: PortLinkRow;
  secrets: SecretRow;
  used_file_links: UsedFileLinkRow;
  idempotency_keys: IdempotencyKeyRow;
  removed_sandboxes: RemovedSandboxRow;
  audit: AuditRow;
  usage_intervals: UsageIntervalRow;
  owner: OwnerRow;
  hosts: HostRow;
  host_watches: HostWatchRow;
  changes: ChangeRow;
  gateways: GatewayRow;
  stored_names: StoredNameRow;
  stored_packs: StoredPackRow;
  checkpoints: CheckpointRow;
  storage_garbage: StorageGarbageRow;
  storage_sweep: StorageSweepRow;
}
