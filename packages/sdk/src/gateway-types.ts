/** Messages of the gateway as they are on the wire (spec/proto/cloche/public/v1/sandbox.proto; spec/contract.md, Resources). */
import type { Egress, OnTimeout, PublicPorts, SandboxState } from "@cloche/protocol";

export interface SandboxInfo {
  id: string;
  name: string;
  state: SandboxState;
  /** Empty until it first runs, then constant. */
  domain: string;
  created_at: string;
  updated_at: string;
  source_sandbox_id: string;
  /** Added: why it is in ERROR, or why the last suspend or resume did not complete. */
  error_message: string;
  metadata: Record<string, string>;
  runtime: string;
  cpus: number;
  memory_mb: number;
  disk_mb: number;
  template: string;
  timeout_seconds: number;
  idle_suspend_seconds: number;
  auto_resume: boolean;
  /** What happens at `expires_at`. */
  on_timeout: OnTimeout;
  expires_at: string;
  source_checkpoint_id: string;
  public_ports: PublicPorts;
  egress: Egress;
}

/** What a sandbox may reach, as requests take it: `domains` and `cidrs` only with mode allow. */
export type EgressRequest = Pick<Egress, "mode"> & Partial<Egress>;

/** What it was denied, since it last started or resumed. */
export interface SandboxEgress {
  egress: Egress;
  denied_packets: number;
  denied_names: number;
  /** The latest 50, latest first. */
  recent_denials: EgressDenial[];
}
export interface EgressDenial {
  /** An address, or a name whose look-up was refused. */
  destination: string;
  protocol: "tcp" | "udp" | "dns";
  /** 0 for dns. */
  port: number;
  count: number;
  last_at: string;
}

/** What a sandbox used at one moment. Sizes in bytes. */
export interface MetricsSample {
  at: string;
  /** 0 to 1: processor time since the sample before, of what its cpus could have given. */
  cpu_share: number;
  memory_bytes: number;
  /** Allocated, what it shares with its template or source included. */
  disk_bytes: number;
  /** Since it last began to run, its data plane's calls included. */
  network_received_bytes: number;
  network_sent_bytes: number;
  /** Of its users, services and containers included. */
  processes: number;
}
export interface SandboxMetrics {
  /** Of a sandbox that does not run: its disk alone. */
  now: MetricsSample;
  /** One each 10 s while it ran in the last hour, oldest first. */
  history: MetricsSample[];
}

export interface CreateSandboxRequest {
  name?: string;
  checkpoint_id?: string;
  template?: string;
  metadata?: Record<string, string>;
  /** For every exec and service. */
  env?: Record<string, string>;
  cpus?: number;
  memory_mb?: number;
  disk_mb?: number;
  runtime?: string;
  /** 0: never ended by itself. */
  timeout_seconds?: number;
  /** Default: delete. */
  on_timeout?: OnTimeout;
  idle_suspend_seconds?: number;
  auto_resume?: boolean;
  /** Numbers, or `["*"]`: every port. */
  public_ports?: PublicPorts;
  egress?: EgressRequest;
  /** 1 to 128 printable characters: a call that repeats it within 24 h answers the same sandbox. With it, a lost answer is asked for again. */
  idempotency_key?: string;
}

export interface ForkSandboxRequest {
  source_sandbox_id: string;
  name?: string;
  /** Starts from this checkpoint of the source instead of its running memory and disk. */
  checkpoint_id?: string;
  metadata?: Record<string, string>;
  timeout_seconds?: number;
  idle_suspend_seconds?: number;
  auto_resume?: boolean;
  /** Default: the source's. */
  egress?: EgressRequest;
  /** As of CreateSandbox. */
  idempotency_key?: string;
  /** 1 to 100, default 1: so many clones of one instant, all or none. With a name they are called `name-1`, `name-2`, … */
  count?: number;
}

export interface SandboxWithToken {
  sandbox: SandboxInfo;
  data_plane_token: string;
  data_plane_token_expires_at_unix: number;
  /** Added: of all sandboxes, `<data_plane_url>/sandboxes/<id>/v1/…`; absent from services before it was added. */
  data_plane_url?: string;
}

export interface ForkedSandboxes extends SandboxWithToken {
  /** All that were made; `sandbox` is the first. */
  sandboxes: SandboxInfo[];
  /** One for each of `sandboxes`. */
  data_plane_tokens: string[];
}

export interface ListSandboxesRequest {
  /** 0 or left out: all. */
  page_size?: number;
  page_token?: string;
  states?: SandboxState[];
  /** Every pair must match. */
  metadata?: Record<string, string>;
  /** Default: -created_at, newest first. */
  order_by?: "created_at" | "-created_at" | "name" | "-name";
  /** Only names that begin with it. */
  name?: string;
}
export interface ListSandboxesResponse {
  /** Newest first, or as `order_by` says. */
  sandboxes: SandboxInfo[];
  next_page_token: string;
}

/** What is left out stays. */
export interface UpdateSandboxRequest {
  id: string;
  name?: string;
  metadata?: Record<string, string>;
  /** Counted from now. */
  timeout_seconds?: number;
  on_timeout?: OnTimeout;
  idle_suspend_seconds?: number;
  auto_resume?: boolean;
  /** Numbers, or `["*"]`: every port. */
  public_ports?: PublicPorts;
  egress?: EgressRequest;
}

export interface TeamCheckpoint {
  id: string;
  name: string;
  sandbox_id: string;
  created_at: string;
  size_bytes: number;
  size_human: string;
  visible: boolean;
  runtime: string;
}

export interface GetUsageRequest {
  /** Left out: all of the team's. */
  sandbox_id?: string;
  /** RFC 3339; left out: from the beginning. */
  from?: string;
  /** RFC 3339; left out: now. */
  to?: string;
  /** At most 1,000, which is the default. */
  page_size?: number;
  page_token?: string;
}
/** What lies within the time range, to the millisecond. */
export interface SandboxUsage {
  sandbox_id: string;
  /** Time in which it was RUNNING. */
  compute_seconds: number;
  /** The same, times its cpus. */
  cpu_seconds: number;
  /** The same, times its memory_mb. */
  memory_mb_seconds: number;
  first_ran_at: string;
  last_ran_at: string;
}
export interface GetUsageResponse {
  /** By sandbox_id; without those that did not run. */
  usage: SandboxUsage[];
  /** Of all that was asked for, not of this page alone. */
  compute_seconds: number;
  /** The range that was counted; empty: from the beginning. */
  from: string;
  to: string;
  next_page_token: string;
}

export interface AuditEntry {
  id: string;
  at: string;
  /** An API key's id, or `system:…`. */
  actor: string;
  /** For example `sandbox.suspend` (asked for) and `sandbox.suspend.done` (ended). */
  action: string;
  subject: string;
  request_id: string;
  /** `ok`, or the code of the error. */
  result: string;
  detail: string;
}
export interface AuditPage {
  /** Newest first. */
  entries: AuditEntry[];
  /** Empty: this was the last page. */
  next_page_token: string;
}

export interface PortLink {
  /** Good for one use within a minute. */
  url: string;
  expires_at_unix: number;
}

export interface ApiKey {
  id: string;
  name: string;
  prefix: string;
  created_at: string;
  expires_at: string;
  last_used_at: string;
}
export interface CreatedApiKey {
  key: ApiKey;
  /** Shown this once. */
  secret: string;
}
