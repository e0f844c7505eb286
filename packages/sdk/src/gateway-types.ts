/** Messages of the gateway in their wire format (spec/proto/cloche/public/v1/sandbox.proto; spec/contract.md, Resources). */
import type { Egress, OnHostLoss, OnTimeout, PublicPorts, SandboxState } from "@cloche/protocol";

/** The gateway's record of a sandbox. */
export interface SandboxInfo {
  /** `sbx-` and 20 characters. */
  id: string;
  /** 1 to 64 characters, not unique. */
  name: string;
  /** RUNNING accepts calls; SUSPENDED can be resumed; for ERROR `error_message` says why. */
  state: SandboxState;
  /** Empty until it first runs, then constant. */
  domain: string;
  /** RFC 3339, UTC, with milliseconds. */
  created_at: string;
  /** RFC 3339, UTC, with milliseconds. */
  updated_at: string;
  /** The sandbox that it was forked from; empty: none. */
  source_sandbox_id: string;
  /** Why it is in ERROR, or why the last suspend or resume did not complete. */
  error_message: string;
  /** Pairs set by the team. */
  metadata: Record<string, string>;
  /** `gvisor` or `qemu`. */
  runtime: string;
  /** Number of processors whose time it may use. */
  cpus: number;
  /** Megabytes. */
  memory_mb: number;
  /** Megabytes. */
  disk_mb: number;
  /** The template it was made from. */
  template: string;
  /** Its lifetime from its creation, resume or update; 0: for ever. */
  timeout_seconds: number;
  /** Time without activity after which it is suspended; 0: never. */
  idle_suspend_seconds: number;
  /** Whether a call of its data plane wakes it. */
  auto_resume: boolean;
  /** What happens at `expires_at`. */
  on_timeout: OnTimeout;
  /** RFC 3339, UTC; empty: never. */
  expires_at: string;
  /** The checkpoint that its disk was made from; empty: none. */
  source_checkpoint_id: string;
  /** Ports that need no token; `["*"]`: every port. */
  public_ports: PublicPorts;
  /** The network addresses that it may reach. */
  egress: Egress;
  /** Whether it is SUSPENDED with memory and disk in storage, so that it outlives its host. Always false on a single machine. */
  durable: boolean;
  /** What happens if its host is lost while it runs. */
  on_host_loss: OnHostLoss;
  /** Interval of automatic checkpoints while it runs; 0: never. */
  checkpoint_every_seconds: number;
  /** In a cluster: the host that has it; empty on a single machine; absent in answers of older services. */
  host_id?: string;
  /** Id of the API key that made it; empty: not known; absent in answers of older services. */
  created_by?: string;
}

/** A network policy in a request; `domains` and `cidrs` only with mode allow. */
export type EgressRequest = Pick<Egress, "mode"> & Partial<Egress>;

/** The network policy of a sandbox, and its denials since it last started or resumed. */
export interface SandboxEgress {
  /** The present policy. */
  egress: Egress;
  /** Number of denied packets. */
  denied_packets: number;
  /** Number of refused look-ups of names. */
  denied_names: number;
  /** The latest 50, latest first. */
  recent_denials: EgressDenial[];
}
/** A destination that was refused. */
export interface EgressDenial {
  /** An address, or a name whose look-up was refused. */
  destination: string;
  /** `dns` for a name. */
  protocol: "tcp" | "udp" | "dns";
  /** 0 for dns. */
  port: number;
  /** Number of denials. */
  count: number;
  /** RFC 3339, UTC, with milliseconds. */
  last_at: string;
}

/** The resources that a sandbox used at one moment. Sizes in bytes. */
export interface MetricsSample {
  /** RFC 3339, UTC, with milliseconds. */
  at: string;
  /** 0 to 1: processor time since the previous sample, as a share of its cpus. */
  cpu_share: number;
  /** Memory of all its processes and of the runtime. */
  memory_bytes: number;
  /** Allocated on its disk, with blocks shared with its template or source. */
  disk_bytes: number;
  /** Since it last began to run, with calls of its data plane. */
  network_received_bytes: number;
  /** As `network_received_bytes`. */
  network_sent_bytes: number;
  /** Number of its users' processes, with those of services and containers. */
  processes: number;
}
/** The resources that a sandbox uses now and used in the last hour. */
export interface SandboxMetrics {
  /** For a sandbox that does not run: only its disk. */
  now: MetricsSample;
  /** One sample for each 10 s in which it ran in the last hour, oldest first. */
  history: MetricsSample[];
}

/** The fields of a new sandbox; all are optional. */
export interface CreateSandboxRequest {
  /** 1 to 64 printable characters, not unique. Default: generated, as `adjective-animal-NNNN`. */
  name?: string;
  /** Start with the disk of this checkpoint of the team. `failed_precondition` until it is visible in storage. Default: a fresh disk. */
  checkpoint_id?: string;
  /** Default `base`, the only one. */
  template?: string;
  /** Up to 64 pairs; keys to 128 characters, values to 1,024. Default none. */
  metadata?: Record<string, string>;
  /** Environment of every exec and service. */
  env?: Record<string, string>;
  /** 0.1 to 64. Default 2. */
  cpus?: number;
  /** Megabytes, 128 to 262,144. Default 1,024. */
  memory_mb?: number;
  /** Megabytes, 1,024 to 1,048,576. Default 8,192. */
  disk_mb?: number;
  /** `gvisor` or `qemu`. Default: the service's. */
  runtime?: string;
  /** Its lifetime; 0: for ever. */
  timeout_seconds?: number;
  /** Default: delete. */
  on_timeout?: OnTimeout;
  /** Time without activity after which it is suspended, up to 31,536,000. Default 0: never. */
  idle_suspend_seconds?: number;
  /** Whether a call of its data plane wakes it. Default false. */
  auto_resume?: boolean;
  /** Numbers, or `["*"]`: every port. */
  public_ports?: PublicPorts;
  /** The network addresses that it may reach. Default open. */
  egress?: EgressRequest;
  /** What happens if its host is lost while it runs. Default: error. */
  on_host_loss?: OnHostLoss;
  /** Interval of automatic checkpoints while it runs, 60 to 86,400; the newest three are kept. Default 0: never. */
  checkpoint_every_seconds?: number;
  /** 1 to 128 printable characters: a call with the same key within 24 h answers the same sandbox. With it the SDK repeats a lost call. */
  idempotency_key?: string;
}

/** The fields of a fork. */
export interface ForkSandboxRequest {
  /** RUNNING or SUSPENDED; else `failed_precondition`. */
  source_sandbox_id: string;
  /** 1 to 64 printable characters, not unique. Default: generated. */
  name?: string;
  /** Starts from this checkpoint of the source instead of its running memory and disk. */
  checkpoint_id?: string;
  /** As in CreateSandboxRequest. Default: the source's. */
  metadata?: Record<string, string>;
  /** Counted from now, up to 31,536,000; 0: never. Default: the source's. */
  timeout_seconds?: number;
  /** Time without activity after which it is suspended; 0: never. Default: the source's. */
  idle_suspend_seconds?: number;
  /** Whether a call of its data plane wakes it. Default: the source's. */
  auto_resume?: boolean;
  /** Default: the source's. */
  egress?: EgressRequest;
  /** What happens if its host is lost while it runs. Default: the source's. */
  on_host_loss?: OnHostLoss;
  /** 60 to 86,400; 0: never. Default: the source's. */
  checkpoint_every_seconds?: number;
  /** As in CreateSandboxRequest. */
  idempotency_key?: string;
  /** Number of clones of one instant, 1 to 100, default 1; all are made or none. With a name they are called `name-1`, `name-2`, … */
  count?: number;
}

/** Answer of a creation or a fork. */
export interface SandboxWithToken {
  /** The new sandbox. */
  sandbox: SandboxInfo;
  /** A token for this sandbox only; empty if it may have none yet. */
  data_plane_token: string;
  /** Unix seconds, by the service's clock. */
  data_plane_token_expires_at_unix: number;
  /** The one address of all sandboxes, `<data_plane_url>/sandboxes/<id>/v1/…`; absent in answers of older services. */
  data_plane_url?: string;
}

/** Answer of a fork. */
export interface ForkedSandboxes extends SandboxWithToken {
  /** All new sandboxes; `sandbox` is the first. */
  sandboxes: SandboxInfo[];
  /** One for each of `sandboxes`. */
  data_plane_tokens: string[];
}

/** Which sandboxes to list, and their order. */
export interface ListSandboxesRequest {
  /** 0 or absent: all. */
  page_size?: number;
  /** `next_page_token` of the previous page. */
  page_token?: string;
  /** Only sandboxes in one of these states; empty: in any. */
  states?: SandboxState[];
  /** Every pair must match. */
  metadata?: Record<string, string>;
  /** Default: -created_at, newest first. */
  order_by?: "created_at" | "-created_at" | "name" | "-name";
  /** Only sandboxes whose name begins with this text. */
  name?: string;
}
/** One page of sandboxes. */
export interface ListSandboxesResponse {
  /** Newest first, or in the order of `order_by`. */
  sandboxes: SandboxInfo[];
  /** Empty: this was the last page. */
  next_page_token: string;
}

/** Changes of a sandbox; absent fields stay as they are. */
export interface UpdateSandboxRequest {
  /** Id of the sandbox. `not_found` if the team has no such sandbox. */
  id: string;
  /** 1 to 64 printable characters. */
  name?: string;
  /** Replaces all pairs. */
  metadata?: Record<string, string>;
  /** Counted from now. */
  timeout_seconds?: number;
  /** What happens at `expires_at`. */
  on_timeout?: OnTimeout;
  /** 0: never. */
  idle_suspend_seconds?: number;
  /** Whether a call of its data plane wakes it. */
  auto_resume?: boolean;
  /** Numbers, or `["*"]`: every port. */
  public_ports?: PublicPorts;
  /** Replaces the policy at once, also for existing connections. */
  egress?: EgressRequest;
  /** What happens if its host is lost while it runs. */
  on_host_loss?: OnHostLoss;
  /** 60 to 86,400; 0: never. */
  checkpoint_every_seconds?: number;
}

/** A checkpoint of the team, also of a deleted sandbox. */
export interface TeamCheckpoint {
  /** `ckpt-` and 20 characters. */
  id: string;
  /** As given, or generated; not unique. */
  name: string;
  /** The sandbox that it was taken of. */
  sandbox_id: string;
  /** RFC 3339, UTC, with milliseconds. */
  created_at: string;
  /** Bytes allocated on the disk at that instant. */
  size_bytes: number;
  /** The same as text: `1.5 MiB`. */
  size_human: string;
  /** Whether it is durable in storage, which is needed to create or fork from it. */
  visible: boolean;
  /** The runtime that wrote the disk: `gvisor` or `qemu`. */
  runtime: string;
  /** Whether the service took it by itself (`checkpoint_every_seconds`). */
  automatic: boolean;
}

/** The sandboxes and the time range of a usage report. */
export interface GetUsageRequest {
  /** Absent: all sandboxes of the team. */
  sandbox_id?: string;
  /** RFC 3339; absent: from the beginning. */
  from?: string;
  /** RFC 3339; absent: now. */
  to?: string;
  /** At most 1,000, which is the default. */
  page_size?: number;
  /** `next_page_token` of the previous page. */
  page_token?: string;
}
/** The use of one sandbox within the time range, to the millisecond. */
export interface SandboxUsage {
  /** May be a deleted sandbox. */
  sandbox_id: string;
  /** Time in which it was RUNNING. */
  compute_seconds: number;
  /** The same, times its cpus. */
  cpu_seconds: number;
  /** The same, times its memory_mb. */
  memory_mb_seconds: number;
  /** RFC 3339, UTC: within the range. */
  first_ran_at: string;
  /** RFC 3339, UTC: within the range. */
  last_ran_at: string;
  /** Its name, the last one of a deleted sandbox; absent in answers of older services. */
  name?: string;
  /** Id of the API key that made it; empty: not known; absent in answers of older services. */
  created_by?: string;
}
/** One page of the team's usage. */
export interface GetUsageResponse {
  /** Sorted by sandbox_id, without sandboxes that did not run. */
  usage: SandboxUsage[];
  /** Sum over all requested sandboxes, not only those of this page. */
  compute_seconds: number;
  /** RFC 3339, UTC: the beginning of the range; empty: from the beginning. */
  from: string;
  /** RFC 3339, UTC: the range's end. */
  to: string;
  /** Empty: this was the last page. */
  next_page_token: string;
}

/** One action on a sandbox, checkpoint or key of the team. */
export interface AuditEntry {
  /** Unique within the team. */
  id: string;
  /** RFC 3339, UTC, with milliseconds. */
  at: string;
  /** An API key's id, or `system:…`. */
  actor: string;
  /** For example `sandbox.suspend` (requested) and `sandbox.suspend.done` (ended). */
  action: string;
  /** Id of the sandbox, checkpoint or key. */
  subject: string;
  /** Request id of the call, which is in the service's log lines. */
  request_id: string;
  /** `ok`, or the code of the error. */
  result: string;
  /** Further details as text; may be empty. */
  detail: string;
}
/** One page of the audit log. */
export interface AuditPage {
  /** Newest first. */
  entries: AuditEntry[];
  /** Empty: this was the last page. */
  next_page_token: string;
}

/** A link that opens a port in a browser. */
export interface PortLink {
  /** Valid for one use within a minute. */
  url: string;
  /** Unix seconds. */
  expires_at_unix: number;
}

/** A key of a team, without its secret. */
export interface ApiKey {
  /** `key-` and 20 characters. */
  id: string;
  /** As given at its creation. */
  name: string;
  /** The beginning of its secret, by which keys can be told apart. */
  prefix: string;
  /** RFC 3339, UTC. */
  created_at: string;
  /** RFC 3339, UTC; empty: never. */
  expires_at: string;
  /** RFC 3339, UTC; empty: not yet. */
  last_used_at: string;
}
/** Answer of `Gateway.createApiKey`. */
export interface CreatedApiKey {
  /** The key without its secret. */
  key: ApiKey;
  /** The secret; it is shown only here. */
  secret: string;
}
