/** JSON bodies of the data plane (spec/contract.md, Endpoints). Added fields are marked. */
export interface ExecRequest {
  cmd: string[];
  dir?: string;
  env?: Record<string, string>;
  stdin?: string;
  timeout_ms?: number;
  /** Added: name, uid, or either with `:group`. Default root. */
  user?: string;
  /** Added: bytes for standard input, in base64; in place of `stdin`. */
  stdin_base64?: string;
  /**
   * Added: a name that the caller makes up, 16 to 64 characters of A-Za-z0-9_-. Standard input stays open after `stdin`, and
   * is written by `POST /v1/exec/stdin` until that ends it or the command has ended.
   */
  stdin_stream?: string;
  /** Added: `base64` for output as the bytes that it is; without it text, in which bytes that are no UTF-8 become U+FFFD. */
  output_encoding?: OutputEncoding;
}
export type OutputEncoding = "utf-8" | "base64";

/** `POST /v1/exec/stdin`, added. `data` or `data_base64`, or neither; up to 1 MiB of bytes. */
export interface ExecStdinRequest {
  /** The `stdin_stream` of an exec that runs. */
  stream: string;
  data?: string;
  data_base64?: string;
  /** No more comes. Default false. */
  end?: boolean;
}
export interface ExecResponse {
  stdout: string;
  stderr: string;
  exit_code: number;
  ok: boolean;
  duration_ms: number;
  timed_out: boolean;
  /** Added: true where one of its processes was killed because the sandbox's memory was used up. */
  out_of_memory?: boolean;
  /** Added: `base64` where `stdout` and `stderr` are that, as was asked for. */
  output_encoding?: "base64";
  /** Added: true where output passed 16 MiB and was cut. */
  stdout_truncated?: boolean;
  stderr_truncated?: boolean;
}

/** `POST /v1/processes`, added: what of exec it takes, and what only a process has. */
export interface ProcessRequest extends Pick<ExecRequest, "cmd" | "dir" | "env" | "user"> {
  /** Kills the whole tree after so long. Default: never. */
  timeout_ms?: number;
  /** A terminal of this size; default none. */
  tty?: Partial<TerminalCells> | null;
  /** Default `open` with a terminal, else `none`. */
  stdin?: "none" | "open";
  /** Standard error into standard output. Default false. */
  merge_output?: boolean;
  /** What is kept of each stream: the newest. 1 to 67,108,864, default 1,048,576. */
  output_limit_bytes?: number;
  /** How long it is remembered once it has ended. 0 to 604,800, default 3,600. */
  keep_seconds?: number;
  /** Free text, at most 256 bytes. */
  tag?: string;
}
export interface TerminalCells {
  cols: number;
  rows: number;
}
export type ProcessKind = "process" | "exec" | "service" | "container";
export type ProcessEndedBy =
  | "exit"
  | "signal"
  | "timeout"
  | "delete"
  | "restore"
  | "machine_restart"
  | "out_of_memory";
export interface ProcessInfo {
  process_id: string;
  /** As the sandbox sees it; 0 once it has ended. */
  pid: number;
  kind: ProcessKind;
  /** The first 4,096 bytes of it. */
  cmd: string[];
  /** Empty: the home directory of its user. */
  dir: string;
  user: string;
  /** Of a service or container: its name. */
  tag: string;
  status: "running" | "exited";
  /** Null while it runs. */
  exit_code: number | null;
  /** Name of the signal that ended it. */
  signal: string | null;
  timed_out: boolean;
  ended_by: ProcessEndedBy | null;
  started_at: string;
  ended_at: string | null;
  tty: TerminalCells | null;
  stdin: "none" | "open" | "closed";
  /** Written so far, whatever of it is kept. */
  stdout_bytes: number;
  stderr_bytes: number;
}
export interface ProcessList {
  /** Oldest first. */
  processes: ProcessInfo[];
}
export interface ProcessStdinResponse {
  ok: boolean;
  /** What the process's input has taken. */
  bytes: number;
}

export interface EntryInfo {
  name: string;
  path: string;
  /** The bytes of `path`, percent-encoded as in a request's `path`; only where they are not UTF-8. Added. */
  path_encoded?: string;
  size: number;
  modified_at: string;
  /** The same as `modified_at`. Added. */
  mtime: string;
  is_dir: boolean;
  /** Four octal digits. */
  permissions: string;
  owner: string;
  /** The same as `owner`. Added. */
  user: string;
  group: string;
  /** Empty when it is no symlink. */
  symlink_target: string;
  /** As `path_encoded`. Added. */
  symlink_target_encoded?: string;
}
export interface ExistsResponse {
  exists: boolean;
  entry_type: "file" | "directory" | "symlink" | "";
}
export interface ListResponse {
  path: string;
  entries: EntryInfo[];
  truncated: boolean;
}
export interface MkdirRequest {
  path: string;
  parents?: boolean;
}
export interface MoveRequest {
  source: string;
  destination: string;
}
/** Added, as all that follows of files. */
export interface CopyRequest {
  source: string;
  destination: string;
  /** A directory with all that is in it. */
  recursive?: boolean;
}
export interface ChmodRequest {
  path: string;
  /** Octal. */
  mode: string;
  recursive?: boolean;
}
/** At least one of `user` and `group`, by name or number. */
export interface ChownRequest {
  path: string;
  user?: string | number;
  group?: string | number;
  recursive?: boolean;
}
/** Data of the events of `GET /v1/files/watch`. */
export interface FileWatchEvent {
  path: string;
  path_encoded?: string;
  entry_type: "file" | "directory" | "symlink";
  /** Of `renamed`: where it was. */
  from?: string;
  from_encoded?: string;
}
export interface FileLinkRequest {
  path: string;
  operation: "read" | "write";
  /** 1 to 604,800; default 300. */
  expires_in_seconds?: number;
  /** Good for one read or write. Default false. */
  once?: boolean;
}
export interface FileLink {
  url: string;
  expires_at: string;
}
export interface OkResponse {
  ok: boolean;
}

export interface CheckpointCreated {
  checkpoint_id: string;
  ok: boolean;
  size_bytes: number;
  copy_duration_ms: number;
}
export interface CheckpointRecord {
  id: string;
  name: string;
  created_at: string;
  size_bytes: number;
  size_human: string;
  /** Added: durable in storage. */
  visible: boolean;
}
export interface CheckpointList {
  checkpoints: CheckpointRecord[];
  /** Added: pass as `cursor` for the next page; empty on the last. */
  cursor: string;
}
export interface CheckpointWaitRequest {
  checkpoint_id: string;
  poll_interval_ms?: number;
  timeout_secs?: number;
}
export interface CheckpointWaitResponse {
  visible: boolean;
  ok: boolean;
  waited_ms: number;
  attempts: number;
}
export interface CheckpointDeleted {
  ok: boolean;
  freed_bytes: number;
}
export interface RestoreResponse {
  ok: boolean;
  restore_duration_ms: number;
  started_services: string[];
  stopped_services: string[];
  failed_services: string[];
}

export type ServiceStatus = "running" | "stopped" | "failed" | "unknown";
export interface ServiceDefinition {
  cmd: string;
  args?: string[];
  env?: Record<string, string>;
  working_dir?: string;
  user?: string;
  health_port?: number;
  needs?: string[];
  container?: boolean;
  image?: string;
  /** Added: what happens when it exits by itself. Default never. */
  restart?: "never" | "on-failure" | "always";
  /** Added, write-only: credentials of a private registry. */
  registry_username?: string;
  registry_password?: string;
  /** Added, write-only: PEM of a registry's own CA. */
  registry_ca?: string;
}
/** How far a container's image is: of its layers, those that lay on the disk before counted as done. */
export interface PullProgress {
  stage: "fetching" | "unpacking";
  layers_done: number;
  layers_total: number;
  /** Bytes as they are fetched, mostly compressed. */
  bytes_done: number;
  bytes_total: number;
}
export interface ServiceRecord {
  name: string;
  cmd: string;
  status: ServiceStatus;
  /** 0 when not running. */
  pid: number;
  container: boolean;
  /** Added fields. */
  exit_code: number | null;
  restarts: number;
  error: string;
  phase: "" | "pulling" | "starting" | "backoff";
  /** Only while `phase` is `pulling`, from the moment at which the image's layers are known. */
  pull?: PullProgress;
}

export interface StoreValue {
  value: unknown;
  expires_at: string | null;
}
export interface StoreSetResponse {
  ok: boolean;
  expires_at: string | null;
}
export interface StoreDeleteResponse {
  deleted: boolean;
  ok: boolean;
}
export interface StoreKeysResponse {
  keys: string[];
  truncated: boolean;
  /** Added: pass as `cursor` for the next page; empty on the last. */
  cursor: string;
}
export type StoreOperation =
  | { op: "set"; key: string; value: unknown; ttl_seconds?: number }
  | { op: "delete"; key: string };
export interface StoreBatchResponse {
  applied: number;
  ok: boolean;
}
