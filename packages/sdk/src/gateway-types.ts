/** Messages of the gateway as they are on the wire (spec/proto/cloche/public/v1/sandbox.proto; spec/contract.md, Resources). */
import type { Egress, OnHostLoss, OnTimeout, PublicPorts, SandboxState } from "@cloche/protocol";

/** A sandbox as the gateway knows it. */
export interface SandboxInfo {
  /** `sbx-` and 20 characters. */
  id: string;
  /** 1 to 64 characters, not unique. */
  name: string;
  /** RUNNING takes calls; SUSPENDED can be resumed; of ERROR `error_message` says why. */
  state: SandboxState;
  /** Empty until it first runs, then constant. */
  domain: string;
  /** RFC 3339, UTC, with milliseconds. */
  created_at: string;
  /** RFC 3339, UTC, with milliseconds. */
  updated_at: string;
  /** What it was forked from; empty: nothing. */
  source_sandbox_id: string;
  /** Added: why it is in ERROR, or why the last suspend or resume did not complete. */
  error_message: string;
  /** The team's own pairs. */
  metadata: Record<string, string>;
  /** `gvisor` or `qemu`. */
  runtime: string;
  /** How many processors' time it may take. */
  cpus: number;
  /** Megabytes. */
  memory_mb: number;
  /** Megabytes. */
  disk_mb: number;
  /** What it was made from. */
  template: string;
  /** How long it lives from its creation, resume or update; 0: for ever. */
  timeout_seconds: number;
  /** Suspended after so long without activity; 0: never. */
  idle_suspend_seconds: number;
  /** Whether a call of its data plane wakes it. */
  auto_resume: boolean;
  /** What happens at `expires_at`. */
  on_timeout: OnTimeout;
  /** RFC 3339, UTC; empty: never. */
  expires_at: string;
  /** The checkpoint that its disk began as; empty: none. */
  source_checkpoint_id: string;
  /** Ports that need no token; `["*"]`: every port. */
  public_ports: PublicPorts;
  /** What it may reach on the network. */
  egress: Egress;
  /** SUSPENDED, and its memory and disk are in storage: it outlives its host. On a single machine never. */
  durable: boolean;
  /** What happens when it runs and its host is lost. */
  on_host_loss: OnHostLoss;
  /** While it runs, the service takes a checkpoint so often; 0: never. */
  checkpoint_every_seconds: number;
}

/** What a sandbox may reach, as requests take it: `domains` and `cidrs` only with mode allow. */
export type EgressRequest = Pick<Egress, "mode"> & Partial<Egress>;

/** What it was denied, since it last started or resumed. */
export interface SandboxEgress {
  /** The policy as it is now. */
  egress: Egress;
  /** How many since then. */
  denied_packets: number;
  /** How many look-ups were refused since then. */
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
  /** How often. */
  count: number;
  /** RFC 3339, UTC, with milliseconds. */
  last_at: string;
}

/** What a sandbox used at one moment. Sizes in bytes. */
export interface MetricsSample {
  /** RFC 3339, UTC, with milliseconds. */
  at: string;
  /** 0 to 1: processor time since the sample before, of what its cpus could have given. */
  cpu_share: number;
  /** Of all its processes and what serves them. */
  memory_bytes: number;
  /** Allocated, what it shares with its template or source included. */
  disk_bytes: number;
  /** Since it last began to run, its data plane's calls included. */
  network_received_bytes: number;
  /** As `network_received_bytes`. */
  network_sent_bytes: number;
  /** Of its users, services and containers included. */
  processes: number;
}
/** What a sandbox uses, and used in the last hour. */
export interface SandboxMetrics {
  /** Of a sandbox that does not run: its disk alone. */
  now: MetricsSample;
  /** One each 10 s while it ran in the last hour, oldest first. */
  history: MetricsSample[];
}

/** What a new sandbox is made of; all is optional. */
export interface CreateSandboxRequest {
  /** 1 to 64 printable characters, not unique. Default: generated, as `adjective-animal-NNNN`. */
  name?: string;
  /** The disk of this checkpoint of the team. `failed_precondition` until it is visible in storage. Default: a fresh disk. */
  checkpoint_id?: string;
  /** Default `base`, the only one. */
  template?: string;
  /** Up to 64 pairs; keys to 128 characters, values to 1,024. Default none. */
  metadata?: Record<string, string>;
  /** For every exec and service. */
  env?: Record<string, string>;
  /** 0.1 to 64. Default 2. */
  cpus?: number;
  /** Megabytes, 128 to 262,144. Default 1,024. */
  memory_mb?: number;
  /** Megabytes, 1,024 to 1,048,576. Default 8,192. */
  disk_mb?: number;
  /** `gvisor` or `qemu`. Default: the service's. */
  runtime?: string;
  /** 0: never ended by itself. */
  timeout_seconds?: number;
  /** Default: delete. */
  on_timeout?: OnTimeout;
  /** Suspended after so long without activity, to 31,536,000. Default 0: never. */
  idle_suspend_seconds?: number;
  /** Whether a call of its data plane wakes it. Default false. */
  auto_resume?: boolean;
  /** Numbers, or `["*"]`: every port. */
  public_ports?: PublicPorts;
  /** What it may reach on the network. Default open. */
  egress?: EgressRequest;
  /** What happens when it runs and its host is lost. Default: error. */
  on_host_loss?: OnHostLoss;
  /** While it runs, the service takes a checkpoint so often, 60 to 86,400, and keeps its newest three. Default 0: never. */
  checkpoint_every_seconds?: number;
  /** 1 to 128 printable characters: a call that repeats it within 24 h answers the same sandbox. With it, a lost answer is asked for again. */
  idempotency_key?: string;
}

/** What a clone is made of. */
export interface ForkSandboxRequest {
  /** RUNNING or SUSPENDED; else `failed_precondition`. */
  source_sandbox_id: string;
  /** 1 to 64 printable characters, not unique. Default: generated. */
  name?: string;
  /** Starts from this checkpoint of the source instead of its running memory and disk. */
  checkpoint_id?: string;
  /** As in CreateSandboxRequest. Default: the source's. */
  metadata?: Record<string, string>;
  /** Counted from now, to 31,536,000; 0: never. Default: the source's. */
  timeout_seconds?: number;
  /** Suspended after so long without activity; 0: never. Default: the source's. */
  idle_suspend_seconds?: number;
  /** Whether a call of its data plane wakes it. Default: the source's. */
  auto_resume?: boolean;
  /** Default: the source's. */
  egress?: EgressRequest;
  /** What happens when it runs and its host is lost. Default: the source's. */
  on_host_loss?: OnHostLoss;
  /** 60 to 86,400; 0: never. Default: the source's. */
  checkpoint_every_seconds?: number;
  /** As of CreateSandbox. */
  idempotency_key?: string;
  /** 1 to 100, default 1: so many clones of one instant, all or none. With a name they are called `name-1`, `name-2`, … */
  count?: number;
}

/** Answer of a creation or a fork. */
export interface SandboxWithToken {
  /** The new sandbox. */
  sandbox: SandboxInfo;
  /** Of this sandbox alone; empty where it may have none yet. */
  data_plane_token: string;
  /** Unix seconds, by the service's clock. */
  data_plane_token_expires_at_unix: number;
  /** Added: of all sandboxes, `<data_plane_url>/sandboxes/<id>/v1/…`; absent from services before it was added. */
  data_plane_url?: string;
}

/** Answer of a fork. */
export interface ForkedSandboxes extends SandboxWithToken {
  /** All that were made; `sandbox` is the first. */
  sandboxes: SandboxInfo[];
  /** One for each of `sandboxes`. */
  data_plane_tokens: string[];
}

/** Which sandboxes, in which order. */
export interface ListSandboxesRequest {
  /** 0 or left out: all. */
  page_size?: number;
  /** `next_page_token` of the page before. */
  page_token?: string;
  /** In one of these; empty: in any. */
  states?: SandboxState[];
  /** Every pair must match. */
  metadata?: Record<string, string>;
  /** Default: -created_at, newest first. */
  order_by?: "created_at" | "-created_at" | "name" | "-name";
  /** Only names that begin with it. */
  name?: string;
}
/** One page of sandboxes. */
export interface ListSandboxesResponse {
  /** Newest first, or as `order_by` says. */
  sandboxes: SandboxInfo[];
  /** Empty: this was the last page. */
  next_page_token: string;
}

/** What is left out stays. */
export interface UpdateSandboxRequest {
  /** Of the sandbox. `not_found` where the team has none. */
  id: string;
  /** 1 to 64 printable characters. */
  name?: string;
  /** Replaces all. */
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
  /** Replaces the policy at once, also of connections that exist. */
  egress?: EgressRequest;
  /** What happens when it runs and its host is lost. */
  on_host_loss?: OnHostLoss;
  /** 60 to 86,400; 0: never. */
  checkpoint_every_seconds?: number;
}

/** A checkpoint of the team, also of a sandbox that is deleted. */
export interface TeamCheckpoint {
  /** `ckpt-` and 20 characters. */
  id: string;
  /** As given, or generated; not unique. */
  name: string;
  /** What it is of. */
  sandbox_id: string;
  /** RFC 3339, UTC, with milliseconds. */
  created_at: string;
  /** Bytes allocated on the disk at that instant. */
  size_bytes: number;
  /** The same for people: `1.5 MiB`. */
  size_human: string;
  /** Whether it is durable in storage, as creating and forking from it need. */
  visible: boolean;
  /** What wrote it: `gvisor` or `qemu`. */
  runtime: string;
  /** Taken by the service, as `checkpoint_every_seconds` says. */
  automatic: boolean;
}

/** Whose use is asked for, and of which time. */
export interface GetUsageRequest {
  /** Left out: all of the team's. */
  sandbox_id?: string;
  /** RFC 3339; left out: from the beginning. */
  from?: string;
  /** RFC 3339; left out: now. */
  to?: string;
  /** At most 1,000, which is the default. */
  page_size?: number;
  /** `next_page_token` of the page before. */
  page_token?: string;
}
/** What lies within the time range, to the millisecond. */
export interface SandboxUsage {
  /** Also of one that is deleted. */
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
}
/** One page of what the team used. */
export interface GetUsageResponse {
  /** By sandbox_id; without those that did not run. */
  usage: SandboxUsage[];
  /** Of all that was asked for, not of this page alone. */
  compute_seconds: number;
  /** The range that was counted; empty: from the beginning. */
  from: string;
  /** RFC 3339, UTC: the range's end. */
  to: string;
  /** Empty: this was the last page. */
  next_page_token: string;
}

/** One thing that was done to what the team has. */
export interface AuditEntry {
  /** Unique within the team. */
  id: string;
  /** RFC 3339, UTC, with milliseconds. */
  at: string;
  /** An API key's id, or `system:…`. */
  actor: string;
  /** For example `sandbox.suspend` (asked for) and `sandbox.suspend.done` (ended). */
  action: string;
  /** Id of the sandbox, checkpoint or key. */
  subject: string;
  /** Of the call that did it; leads to the service's log line. */
  request_id: string;
  /** `ok`, or the code of the error. */
  result: string;
  /** More about it, for people; empty: nothing. */
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
  /** Good for one use within a minute. */
  url: string;
  /** Unix seconds. */
  expires_at_unix: number;
}

/** A key of a team, without its secret. */
export interface ApiKey {
  /** `key-` and 20 characters. */
  id: string;
  /** As it was given at its creation. */
  name: string;
  /** The beginning of its secret, to tell keys apart. */
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
  /** The key as the list shows it. */
  key: ApiKey;
  /** Shown this once. */
  secret: string;
}
