/**
 * The agent's interface to a guest: users' processes and files, reached through the native spawner. native/guest/PROTOCOL.md describes the
 * wire protocol; no type here exposes a frame.
 */

import type { GuestFiles, GuestPath } from "./file-types.ts";

/** An output stream of a process. With a pty all output arrives as `stdout`. */
export type OutputStream = "stdout" | "stderr";

/** A program to run. No shell interprets any field. */
export interface SpawnRequest {
  /** Program and arguments, not empty, no NUL bytes. A program without a slash is searched on the PATH in `env`, inside the guest's root. */
  readonly argv: readonly string[];
  /** The whole environment. Only HOME, USER, LOGNAME and SHELL are added, from the account, if absent. */
  readonly env: Readonly<Record<string, string>>;
  /** Working directory. Absent: the user's home if it exists, else `/`. */
  readonly cwd?: string;
  /** `name`, `uid`, `name:group` or `uid:gid`, looked up in the guest's own /etc/passwd and /etc/group. Default root. */
  readonly user?: string;
  /** `pipe`: `write` and `end` feed it. `none` (default): /dev/null. Ignored with a pty, whose input is always open. */
  readonly stdin?: "none" | "pipe";
  /** Runs on a new pseudo-terminal, which becomes its controlling terminal. */
  readonly pty?: TerminalSize;
  /** Standard error goes into standard output, in the order of the writes. A pty does so anyway. */
  readonly mergeOutput?: boolean;
  /**
   * Treatment of processes that outlive the program. `leave` (default): the guest's init adopts them, and `kill` has no effect any more.
   * `hold` (services): they stay in this process's tree until `kill` or their own end.
   */
  readonly tree?: "leave" | "hold";
  /** Receives the output, in order per stream. Credit returns when the promise resolves, so a slow taker slows only its own process. */
  readonly onOutput?: (stream: OutputStream, chunk: Buffer) => void | Promise<void>;
}

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/**
 * The target of a signal: only the program, its whole tree (also children that called setsid), or its process group; with a pty, the
 * foreground group of the terminal.
 */
export type SignalScope = "program" | "tree" | "group";

/** How a program ended: by itself with `code`, or by a signal (`code` is then 128 + signal, as in shells). */
export interface ProcessExit {
  readonly code: number;
  readonly signal: number | null;
}

/** A requested program; it runs once `Guest.spawn` has resolved. */
export interface GuestProcess {
  /** Its pid in the guest's pid namespace; 0 until it is known. */
  readonly pid: number;
  /**
   * Resolves when the program itself has ended and `onOutput` has taken all its output. Rejects with `SpawnError` if it could not be
   * started (`launch`), or with stage `lost` if the guest ended.
   */
  readonly exited: Promise<ProcessExit>;
  /** With `tree: "hold"`: resolves when the whole tree has ended. Otherwise at the same moment as `exited`. */
  readonly ended: Promise<void>;
  /** Whether a process of its tree was killed because the sandbox's memory was used up; known when the program has ended. */
  readonly outOfMemory: boolean;
  /** Writes to stdin (or the pty). Resolves when there is room for more; data after the end of the program is dropped. */
  write(data: Buffer): Promise<void>;
  /** Ends stdin. */
  end(): void;
  /** Sends a signal. Does nothing after the end of the program. */
  signal(signal: number, scope: SignalScope): void;
  /** The pid of a process that was launched without `onStarted`; 0 if it has ended or does not run within `withinMs`. */
  findPid(withinMs: number): Promise<number>;
  /** Kills the whole tree and nothing else; resolves with `ended`. */
  kill(): Promise<void>;
  /** Living processes of its tree, with pids in the agent's namespace. */
  tree(): number[];
  /** Sets the size of the pty. */
  resize(size: TerminalSize): void;
}

/** The step of a spawn that failed; `exec` carries the errno of execve. */
export type SpawnStage = "request" | "user" | "cwd" | "exec" | "fork" | "pty" | "lost";

/** The root of a guest, its mounts and limits. */
export interface GuestOptions {
  /** Directory that becomes `/`, as a path of the agent. */
  readonly root: string;
  /** Fresh tmpfs mounts, created when missing. Default `["/run"]`, which is then filled as systemd-tmpfiles would (native/guest/tmpfiles.c). */
  readonly tmpfs?: readonly string[];
  /** Processes that may run at once in all guests of this agent together, if the system can count them. Default 4,096. */
  readonly maxProcesses?: number;
  /**
   * Kills users' processes when they take more memory than the sandbox was promised. For gVisor, which would be killed as a whole. One
   * guard watches all guests of the agent, so only the users' guest has it. Default false.
   */
  readonly memoryGuard?: boolean;
  /**
   * Programs run in a separate user namespace (confine.h). For a machine whose kernel users share with the agent; also for containers.
   * Default false.
   */
  readonly userNamespace?: boolean;
  /** Not the users' guest: the cgroup of the limit, which all guests share, stays when this one ends. Set by `openContainer`. */
  readonly container?: boolean;
  /** Host name in its uts namespace; absent: the sandbox's. */
  readonly hostname?: string;
  /** Files or directories of the agent's file system that are mounted into the guest. */
  readonly mounts?: readonly {
    readonly source: string;
    readonly target: string;
    readonly readOnly?: boolean;
  }[];
}

/**
 * One root with its own pid, mount and ipc namespaces: the users' tree or a container. Its pid 1 is our init, which reaps orphans; `close`
 * kills pid 1 and so every process of the guest.
 */
export interface Guest {
  /** Runs a program. Rejects with `SpawnError` naming the stage that failed. */
  spawn(request: SpawnRequest): Promise<GuestProcess>;
  /**
   * As `spawn`, but returns at once. Without `onStarted` the guest sends no message when the program runs, which saves time for short
   * programs; the pid is then unknown. A failure to start rejects `exited`.
   */
  launch(request: SpawnRequest, onStarted?: () => void): GuestProcess;
  /** Packs the directory `path` as a tar stream that arrives at `onOutput`, or unpacks one written to its stdin. `user`: default root. */
  archive(
    operation: "create" | "extract",
    path: GuestPath,
    onOutput: NonNullable<SpawnRequest["onOutput"]>,
    user?: string,
  ): GuestProcess;
  /** Files of this root, as its root user sees them. */
  readonly files: GuestFiles;
  /** Resolves when the guest has ended, for any reason. */
  readonly closed: Promise<void>;
  /**
   * Renews a guest of a template in which no user's program has run: gives it a new boot id, and its tmpfs mounts the size that fits this
   * machine. Files in /run may be gone.
   */
  renew(): Promise<void>;
  /** Waits at most `withinMs` until none of its programs runs. */
  settle(withinMs: number): Promise<void>;
  /** Kills all processes and waits for their end, so that the disk can be unmounted. */
  close(): Promise<void>;
}

/**
 * The agent's access to users' programs: the attached disk, its guest, and the containers on it.
 *
 *     detached ──attach──▶ attached ──detach──▶ detached
 *                             │ pid 1 dies by itself: `lost` is emitted and a new guest is started on the same disk
 */
export interface Spawner {
  /** Starts the users' guest on `<diskPath>/fs`. */
  attach(diskPath: string, options?: Pick<GuestOptions, "maxProcesses">): Promise<void>;
  /** Closes every container and the users' guest; when it resolves, none of them holds the disk. */
  detach(): Promise<void>;
  /** Call if an attach comes soon: starts the guest's process ahead. May be repeated. */
  expectAttach(): void;
  /** The users' guest. Throws `unavailable` while detached. */
  readonly guest: Guest;
  /** Starts a container: its own root, pid, mount and ipc namespaces, the sandbox's network. `id` must be free. */
  openContainer(id: string, options: GuestOptions): Promise<Guest>;
  container(id: string): Guest | undefined;
  /**
   * `listener` is called when a guest ended without `close`: all its processes are gone. `container` is null for the users' guest, which is
   * started again; each failure of that start calls it again, with the reason.
   */
  onLost(listener: LostListener): void;
  /** `listener` is called for every process that was killed because the sandbox's memory was used up. */
  onOutOfMemory(listener: (killed: KilledForMemory) => void): void;
}

export type LostListener = (container: string | null, cause: Error) => void;

export interface KilledForMemory {
  /** The process's name in the system; at most 15 bytes. */
  readonly name: string;
  readonly memoryBytes: number;
}
