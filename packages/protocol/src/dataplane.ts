/** JSON bodies of the data plane (spec/contract.md, Endpoints). Added fields are marked. */

/** A command to run. */
export interface ExecRequest {
  /** Program and arguments, 1 to 10,000 of up to 128 KiB; no shell. */
  cmd: string[];
  /** Working directory. Default: `/root`, or the user's home. `invalid_argument` if it does not exist. */
  dir?: string;
  /** Variables added to the sandbox's own, which they override. Default: none. */
  env?: Record<string, string>;
  /** Text for standard input, up to 16 MiB. Default empty. */
  stdin?: string;
  /** Milliseconds after which the whole process tree is killed. Default: never. */
  timeout_ms?: number;
  /** Added: name, uid, or either with `:group`. Default root. */
  user?: string;
  /** Added: bytes for standard input, in base64; instead of `stdin`. */
  stdin_base64?: string;
  /**
   * Added: a name chosen by the caller, 16 to 64 characters of A-Za-z0-9_-. Standard input stays open after `stdin`,
   * and is written by `POST /v1/exec/stdin` until that ends it or the command ends.
   */
  stdin_stream?: string;
  /** Added: `base64` returns the exact bytes. Default: text, in which bytes that are not UTF-8 become U+FFFD. */
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
  /** True: this is the end of the input. Default false. */
  end?: boolean;
}
/** How a command ended. */
export interface ExecResponse {
  /** Up to 16 MiB; bytes that are not UTF-8 are U+FFFD. */
  stdout: string;
  /** As `stdout`. */
  stderr: string;
  /** 127 not found, 126 not executable, 128 + N killed by signal N. */
  exit_code: number;
  /** True: `exit_code` is 0 and the command did not time out. */
  ok: boolean;
  /** Milliseconds from the command's start to its end. */
  duration_ms: number;
  /** True: the command was killed because `timeout_ms` were over. */
  timed_out: boolean;
  /** Added: true if one of its processes was killed because the sandbox's memory was used up. */
  out_of_memory?: boolean;
  /** Added: `base64` if `stdout` and `stderr` are in base64, as requested. */
  output_encoding?: "base64";
  /** Added: true if the output exceeded 16 MiB and was cut. */
  stdout_truncated?: boolean;
  /** As `stdout_truncated`. */
  stderr_truncated?: boolean;
}

/** `POST /v1/processes`, added: fields as of exec, and fields that only a process has. */
export interface ProcessRequest extends Pick<ExecRequest, "cmd" | "dir" | "env" | "user"> {
  /** Milliseconds after which the whole process tree is killed. Default: never. */
  timeout_ms?: number;
  /** A terminal of this size; default none. */
  tty?: Partial<TerminalCells> | null;
  /** Default: `open` with a terminal, else `none`. */
  stdin?: "none" | "open";
  /** Writes standard error into standard output. Default false. */
  merge_output?: boolean;
  /** How much output is kept of each stream, the newest. 1 to 67,108,864, default 1,048,576. */
  output_limit_bytes?: number;
  /** Seconds for which the process is remembered after its end. 0 to 604,800, default 3,600. */
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
/** How a process was started. */
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
  /** As the sandbox sees it; 0 after the process has ended. */
  pid: number;
  /** How it was started: a process or an exec of a client, a service, a container. */
  kind: ProcessKind;
  /** The first 4,096 bytes of the command. */
  cmd: string[];
  /** Empty: the home directory of its user. */
  dir: string;
  /** As requested; default `root`. */
  user: string;
  /** As requested; for a service or container, its name. */
  tag: string;
  /** `running` until its whole output has been read. */
  status: "running" | "exited";
  /** Null while it runs. */
  exit_code: number | null;
  /** Name of the signal that ended it. */
  signal: string | null;
  /** True: it was killed because `timeout_ms` were over. */
  timed_out: boolean;
  /** Null while it runs. */
  ended_by: ProcessEndedBy | null;
  /** RFC 3339, UTC, with milliseconds. */
  started_at: string;
  /** RFC 3339, UTC, with milliseconds; null while it runs. */
  ended_at: string | null;
  /** The size of its terminal; null: it has none. */
  tty: TerminalCells | null;
  /** Whether its input can be written: never (`none`), now (`open`) or no longer (`closed`). */
  stdin: "none" | "open" | "closed";
  /** Bytes written so far, whether they are still kept or not. */
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
  /** Bytes that were written into the process's input. */
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
  /** Whether it is a directory; false for a symbolic link. */
  is_dir: boolean;
  /** Four octal digits. */
  permissions: string;
  /** Name of its user, or the number if there is no name. */
  owner: string;
  /** The same as `owner`. Added. */
  user: string;
  /** Name of its group, or the number if there is no name. */
  group: string;
  /** Empty when it is not a symlink. */
  symlink_target: string;
  /** As `path_encoded`. Added. */
  symlink_target_encoded?: string;
  /** What a symlink leads to in the end, empty for nothing; only in a list with `targets`. Added. */
  target_type?: "file" | "directory" | "";
  /** Extended attributes of `user.*` by name, values in base64; only if requested, or given with a write. Added. */
  attributes?: Record<string, string>;
}
/** Answer of `Files.exists`. */
export interface ExistsResponse {
  /** Also true for a symbolic link that leads nowhere. */
  exists: boolean;
  /** Empty if there is nothing. */
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
/** Added, like all types of files below. */
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
  /** What is, or was, at the path. */
  entry_type: "file" | "directory" | "symlink";
  /** For `renamed`: the former path. */
  from?: string;
  /** As `path_encoded`. */
  from_encoded?: string;
}
/** A request for a link to a file. */
export interface FileLinkRequest {
  /** Absolute path of the one file that the link opens. */
  path: string;
  /** The operation that the link allows. */
  operation: "read" | "write";
  /** 1 to 604,800; default 300. */
  expires_in_seconds?: number;
  /** True: the link is valid for one read or write. Default false. */
  once?: boolean;
}
/** A link to one file. */
export interface FileLink {
  /** Works without a token, from a browser of any origin. */
  url: string;
  /** RFC 3339, UTC. */
  expires_at: string;
}
/** Answer of calls without a result. */
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
  /** The same as text for people: `1.5 MiB`. */
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
  /** How often storage was checked. */
  attempts: number;
}
/** Answer of `Checkpoints.delete`. */
export interface CheckpointDeleted {
  /** Always true. */
  ok: boolean;
  /** Bytes in storage that no other checkpoint needed. */
  freed_bytes: number;
}
/** Answer of a restore. */
export interface RestoreResponse {
  /** True: the disk is that of the checkpoint. */
  ok: boolean;
  /** Milliseconds. */
  restore_duration_ms: number;
  /** Services that ran when the checkpoint was taken, in the order of their start. */
  started_services: string[];
  /** Services that ran before and do not run now. */
  stopped_services: string[];
  /** Services that should have been started and were not. */
  failed_services: string[];
}

/** The status of a service. */
export type ServiceStatus = "running" | "stopped" | "failed" | "unknown";
/** A supervised program. */
export interface ServiceDefinition {
  /** The program. In a container empty: the image's own entrypoint. */
  cmd: string;
  /** Its arguments. Default none. */
  args?: string[];
  /** Variables added to the sandbox's own. Default: none. */
  env?: Record<string, string>;
  /** Absolute. Default `/root`; in a container the image's. */
  working_dir?: string;
  /** Name or number, optionally with `:group`. Default root; in a container the image's. */
  user?: string;
  /**
   * Counts as running once this port accepts connections. Default none: in a container once the health check of its image passes, if it has
   * one; otherwise as soon as it is started.
   */
  health_port?: number;
  /** Added: whether the health check of the image counts, if there is no `health_port`. Default true. */
  healthcheck?: boolean;
  /** Added: how long it may take until it counts as running, 1 to 3,600 s. Default 60, with a slow health check of the image longer. */
  start_timeout_secs?: number;
  /**
   * Added: a signal for the program alone that asks it to end, such as `SIGINT`. Default: the one that its image names; otherwise SIGTERM,
   * to its whole process tree.
   */
  stop_signal?: string;
  /** Added: how long after that signal its whole process tree is killed, 0 to 600 s. Default that of the image, or 10. */
  stop_timeout_secs?: number;
  /** Services that are started first. Default none. */
  needs?: string[];
  /** Runs in a container of `image`. Default false. */
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
/** Progress of fetching a container's image. Layers that were on the disk before count as done. */
export interface PullProgress {
  /** Layers are fetched in parallel, then unpacked. */
  stage: "fetching" | "unpacking";
  /** Layers that are done. */
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
  /** How often its restart policy has restarted it. */
  restarts: number;
  /** Why it failed; empty: it did not. */
  error: string;
  /** What happens while `status` is `unknown`. */
  phase: "" | "pulling" | "starting" | "backoff";
  /** Only while `phase` is `pulling`, once the image's layers are known. */
  pull?: PullProgress;
}

/** The value of a key. */
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
/** One operation of a batch; `ttl_seconds` as in `Store.set`. */
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
