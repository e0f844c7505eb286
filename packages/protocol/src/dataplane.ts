// JSON bodies of the data plane (spec/contract.md, Endpoints). Added fields are marked.

/** A command to run. */
export interface ExecRequest {
  /** Program and arguments, 1 to 10,000 of up to 128 KiB; no shell. */
  cmd: string[];
  /** Working directory. Default `/root`, or the user's home. `invalid_argument` where there is none. */
  dir?: string;
  /** In addition to the sandbox's own, over it. Default none. */
  env?: Record<string, string>;
  /** Text for standard input, up to 16 MiB. Default empty. */
  stdin?: string;
  /** Milliseconds after which its whole process tree is killed. Default: never. */
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
/** How output is written in JSON. */
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
/** How a command ended. */
export interface ExecResponse {
  /** Up to 16 MiB; bytes that are no UTF-8 are U+FFFD. */
  stdout: string;
  /** As `stdout`. */
  stderr: string;
  /** 127 not found, 126 not executable, 128 + N killed by signal N. */
  exit_code: number;
  /** `exit_code` is 0 and it was not timed out. */
  ok: boolean;
  /** Milliseconds from its start to its end. */
  duration_ms: number;
  /** It was killed because `timeout_ms` were over. */
  timed_out: boolean;
  /** Added: true where one of its processes was killed because the sandbox's memory was used up. */
  out_of_memory?: boolean;
  /** Added: `base64` where `stdout` and `stderr` are that, as was asked for. */
  output_encoding?: "base64";
  /** Added: true where output passed 16 MiB and was cut. */
  stdout_truncated?: boolean;
  /** As `stdout_truncated`. */
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
/** The size of a terminal, in characters. */
export interface TerminalCells {
  /** 1 to 65,535. */
  cols: number;
  /** 1 to 65,535. */
  rows: number;
}
/** What a process was started as. */
export type ProcessKind = "process" | "exec" | "service" | "container";
/** Why a process ended. */
export type ProcessEndedBy =
  | "exit"
  | "signal"
  | "timeout"
  | "delete"
  | "restore"
  | "machine_restart"
  | "out_of_memory";
/** A process of a sandbox, running or ended. */
export interface ProcessInfo {
  /** `proc-` and 20 characters; the same in a live fork. */
  process_id: string;
  /** As the sandbox sees it; 0 once it has ended. */
  pid: number;
  /** What started it: a process or an exec of a client, a service, a container. */
  kind: ProcessKind;
  /** The first 4,096 bytes of it. */
  cmd: string[];
  /** Empty: the home directory of its user. */
  dir: string;
  /** As it was asked for; default `root`. */
  user: string;
  /** Of a service or container: its name. */
  tag: string;
  /** `running` until its whole output is in. */
  status: "running" | "exited";
  /** Null while it runs. */
  exit_code: number | null;
  /** Name of the signal that ended it. */
  signal: string | null;
  /** It was killed because `timeout_ms` were over. */
  timed_out: boolean;
  /** Null while it runs. */
  ended_by: ProcessEndedBy | null;
  /** RFC 3339, UTC, with milliseconds. */
  started_at: string;
  /** RFC 3339, UTC, with milliseconds; null while it runs. */
  ended_at: string | null;
  /** The size of its terminal; null: it has none. */
  tty: TerminalCells | null;
  /** Whether its input can be written: never, still, or no more. */
  stdin: "none" | "open" | "closed";
  /** Written so far, whatever of it is kept. */
  stdout_bytes: number;
  /** As `stdout_bytes`. */
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

/** A file, directory or symbolic link. */
export interface EntryInfo {
  /** The last part of `path`. */
  name: string;
  /** Absolute. */
  path: string;
  /** The bytes of `path`, percent-encoded as in a request's `path`; only where they are not UTF-8. Added. */
  path_encoded?: string;
  /** Bytes. */
  size: number;
  /** RFC 3339, UTC, with milliseconds. */
  modified_at: string;
  /** The same as `modified_at`. Added. */
  mtime: string;
  /** Whether it is a directory; of a symbolic link false. */
  is_dir: boolean;
  /** Four octal digits. */
  permissions: string;
  /** Name of its user, or the number where there is no name. */
  owner: string;
  /** The same as `owner`. Added. */
  user: string;
  /** Name of its group, or the number where there is no name. */
  group: string;
  /** Empty when it is no symlink. */
  symlink_target: string;
  /** As `path_encoded`. Added. */
  symlink_target_encoded?: string;
  /** Extended attributes of `user.*` by name, values in base64; only where they were asked for, or given to a write. Added. */
  attributes?: Record<string, string>;
}
/** Answer of `Files.exists`. */
export interface ExistsResponse {
  /** Also of a symbolic link that leads nowhere. */
  exists: boolean;
  /** Empty where there is nothing. */
  entry_type: "file" | "directory" | "symlink" | "";
}
/** Answer of `Files.list`. */
export interface ListResponse {
  /** The directory that was asked for. */
  path: string;
  /** Sorted by path; at most 10,000. */
  entries: EntryInfo[];
  /** Entries were left out: beyond 10,000, or below `depth`. */
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
  /** Absolute. */
  path: string;
  /** Its bytes, percent-encoded; only where they are not UTF-8. */
  path_encoded?: string;
  /** What is, or was, there. */
  entry_type: "file" | "directory" | "symlink";
  /** Of `renamed`: where it was. */
  from?: string;
  /** As `path_encoded`. */
  from_encoded?: string;
}
/** What a link shall open. */
export interface FileLinkRequest {
  /** Absolute: the one file that it opens. */
  path: string;
  /** What it is good for. */
  operation: "read" | "write";
  /** 1 to 604,800; default 300. */
  expires_in_seconds?: number;
  /** Good for one read or write. Default false. */
  once?: boolean;
}
/** A link to one file. */
export interface FileLink {
  /** Works without a token, from a browser of any origin. */
  url: string;
  /** RFC 3339, UTC. */
  expires_at: string;
}
/** Answer of what has nothing to tell. */
export interface OkResponse {
  /** Always true. */
  ok: boolean;
}

/** Answer of `Checkpoints.create`. */
export interface CheckpointCreated {
  /** `ckpt-` and 20 characters. */
  checkpoint_id: string;
  /** True: the snapshot is taken; its upload goes on. */
  ok: boolean;
  /** Bytes allocated on the disk at that instant. */
  size_bytes: number;
  /** How long the snapshot took, in milliseconds. */
  copy_duration_ms: number;
}
/** A checkpoint of a sandbox. */
export interface CheckpointRecord {
  /** `ckpt-` and 20 characters. */
  id: string;
  /** As given, or generated; not unique. */
  name: string;
  /** RFC 3339, UTC, with milliseconds. */
  created_at: string;
  /** Bytes allocated on the disk at that instant. */
  size_bytes: number;
  /** The same for people: `1.5 MiB`. */
  size_human: string;
  /** Added: durable in storage. */
  visible: boolean;
}
/** Answer of `GET /v1/checkpoint/list`. */
export interface CheckpointList {
  /** Newest first. */
  checkpoints: CheckpointRecord[];
  /** Added: pass as `cursor` for the next page; empty on the last. */
  cursor: string;
}
export interface CheckpointWaitRequest {
  checkpoint_id: string;
  poll_interval_ms?: number;
  timeout_secs?: number;
}
/** Answer of `Checkpoints.wait`. */
export interface CheckpointWaitResponse {
  /** Always true: it is durable in storage. */
  visible: boolean;
  /** Always true. */
  ok: boolean;
  /** How long the wait took, in milliseconds. */
  waited_ms: number;
  /** How often storage was looked at. */
  attempts: number;
}
/** Answer of `Checkpoints.delete`. */
export interface CheckpointDeleted {
  /** Always true. */
  ok: boolean;
  /** Bytes in storage that no other checkpoint needs. */
  freed_bytes: number;
}
/** Answer of a restore. */
export interface RestoreResponse {
  /** True: the disk is that of the checkpoint. */
  ok: boolean;
  /** Milliseconds. */
  restore_duration_ms: number;
  /** Those that ran at checkpoint time, in the order of their start. */
  started_services: string[];
  /** Those that ran before and do not run now. */
  stopped_services: string[];
  /** Those that should have been started and were not. */
  failed_services: string[];
}

/** How a service is. */
export type ServiceStatus = "running" | "stopped" | "failed" | "unknown";
/** A supervised program. */
export interface ServiceDefinition {
  /** The program. In a container empty: the image's own entrypoint. */
  cmd: string;
  /** Its arguments. Default none. */
  args?: string[];
  /** In addition to the sandbox's own. Default none. */
  env?: Record<string, string>;
  /** Absolute. Default `/root`; in a container the image's. */
  working_dir?: string;
  /** Name or number, with `:group` if need be. Default root; in a container the image's. */
  user?: string;
  /** Counts as running once this port takes connections, within 60 s. Default none: once it is started. */
  health_port?: number;
  /** Services that are started first. Default none. */
  needs?: string[];
  /** In a container of `image`. Default false. */
  container?: boolean;
  /** OCI reference: `docker.io/library/redis:7`. Needed with `container`. */
  image?: string;
  /** Added: what happens when it exits by itself. Default never. */
  restart?: "never" | "on-failure" | "always";
  /** Added, write-only: credentials of a private registry. */
  registry_username?: string;
  /** Goes with `registry_username`. */
  registry_password?: string;
  /** Added, write-only: PEM of a registry's own CA. */
  registry_ca?: string;
}
/** How far a container's image is: of its layers, those that lay on the disk before counted as done. */
export interface PullProgress {
  /** Layers are fetched side by side, then unpacked. */
  stage: "fetching" | "unpacking";
  /** Layers that are there. */
  layers_done: number;
  /** All layers of the image. */
  layers_total: number;
  /** Bytes as they are fetched, mostly compressed. */
  bytes_done: number;
  /** All bytes to fetch. */
  bytes_total: number;
}
/** A service as its supervisor sees it. */
export interface ServiceRecord {
  /** `[a-z0-9][a-z0-9_-]{0,62}`. */
  name: string;
  /** The program of its definition. */
  cmd: string;
  /** `failed`: exited by itself with non-zero, or never healthy; `stopped`: never started, stopped, or exited 0. */
  status: ServiceStatus;
  /** 0 when not running. */
  pid: number;
  /** Whether it runs in a container. */
  container: boolean;
  /** Added fields. */
  exit_code: number | null;
  /** How often it was started again by its restart policy. */
  restarts: number;
  /** Why it failed; empty: it did not. */
  error: string;
  /** What goes on while `status` is `unknown`. */
  phase: "" | "pulling" | "starting" | "backoff";
  /** Only while `phase` is `pulling`, from the moment at which the image's layers are known. */
  pull?: PullProgress;
}

/** What lies under a key. */
export interface StoreValue {
  /** Any JSON. */
  value: unknown;
  /** RFC 3339, UTC; null: never. */
  expires_at: string | null;
}
/** Answer of a set. */
export interface StoreSetResponse {
  /** True: it is durable. */
  ok: boolean;
  /** RFC 3339, UTC; null: never. */
  expires_at: string | null;
}
/** Answer of a deletion. */
export interface StoreDeleteResponse {
  /** Whether there was such a key. */
  deleted: boolean;
  /** Always true. */
  ok: boolean;
}
/** One page of keys. */
export interface StoreKeysResponse {
  /** Sorted. */
  keys: string[];
  /** There are more; see `cursor`. */
  truncated: boolean;
  /** Added: pass as `cursor` for the next page; empty on the last. */
  cursor: string;
}
/** One of a batch; `ttl_seconds` as in `Store.set`. */
export type StoreOperation =
  | { op: "set"; key: string; value: unknown; ttl_seconds?: number }
  | { op: "delete"; key: string };
/** Answer of a batch. */
export interface StoreBatchResponse {
  /** How many operations: all of them. */
  applied: number;
  /** Always true. */
  ok: boolean;
}
