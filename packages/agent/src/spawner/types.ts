/**
 * What the rest of the agent sees of the guest: users' processes and files, reached through the native spawner.
 * The wire side of it is native/guest/PROTOCOL.md. No type here exposes a frame.
 */

import type { GuestFiles, GuestPath } from "./file-types.ts";

/** A stream of a process that can be told apart. With a pty everything arrives as `stdout`. */
export type OutputStream = "stdout" | "stderr";

/** What to run. Nothing here is interpreted by a shell. */
export interface SpawnRequest {
  /** Program and arguments, not empty, no NUL bytes. Without a slash the program is searched on the PATH in `env`, inside the guest's root. */
  readonly argv: readonly string[];
  /** The whole environment. HOME, USER, LOGNAME and SHELL are added from the account when absent; nothing else is. */
  readonly env: Readonly<Record<string, string>>;
  /** Working directory. Absent: the user's home where it exists, else `/`. */
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
   * What becomes of processes that outlive the program. `leave` (default): they live on, adopted by the guest's init, and
   * `kill` has no effect any more. `hold`: they stay known as this process's tree until `kill` or their own end (services).
   */
  readonly tree?: "leave" | "hold";
  /** Program's output, in order per stream. Its credit returns when the returned promise resolves, so a slow taker slows only its own process. */
  readonly onOutput?: (stream: OutputStream, chunk: Buffer) => void | Promise<void>;
}

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/**
 * Whom a signal reaches: the program alone, its whole tree (children that called setsid included), or its process group; with
 * a pty, the group in the terminal's foreground.
 */
export type SignalScope = "program" | "tree" | "group";

/** How a program ended: by itself with `code`, or by a signal (`code` is then 128 + signal, as shells count). */
export interface ProcessExit {
  readonly code: number;
  readonly signal: number | null;
}

/** A program that was asked for; running once `Guest.spawn` resolved. */
export interface GuestProcess {
  /** Its pid as users see it (in the guest's pid namespace); 0 until that is known. */
  readonly pid: number;
  /**
   * Resolves when the program itself has ended and all output it wrote has been taken by `onOutput`. Rejects with `SpawnError`
   * when it could not be started (`launch`), or with stage `lost` when the guest ended under it.
   */
  readonly exited: Promise<ProcessExit>;
  /** With `tree: "hold"`: resolves when nothing of its tree is left. Otherwise the same moment as `exited`. */
  readonly ended: Promise<void>;
  /** A process of its tree was killed because the sandbox's memory was used up; known by the end of the program. */
  readonly outOfMemory: boolean;
  /** Feeds stdin (or the pty). Resolves when there is room for more; data after the end of the program is dropped. */
  write(data: Buffer): Promise<void>;
  /** Ends stdin. */
  end(): void;
  /** Sends a signal. Does nothing after its end. */
  signal(signal: number, scope: SignalScope): void;
  /** The pid of one that was launched without asking for it; 0 where it has ended, or does not run before `withinMs`. */
  findPid(withinMs: number): Promise<number>;
  /** Kills the whole tree and nothing else; resolves with `ended`. */
  kill(): Promise<void>;
  /** What lives of its tree, as the agent counts processes. */
  tree(): number[];
  /** Tells the pty its new size. */
  resize(size: TerminalSize): void;
}

/** The step of a spawn that failed; `exec` carries the errno of execve. */
export type SpawnStage = "request" | "user" | "cwd" | "exec" | "fork" | "pty" | "lost";

/** Where a guest's tree lies and what is mounted in it. */
export interface GuestOptions {
  /** Directory that becomes `/`, as the agent sees it. */
  readonly root: string;
  /** Fresh tmpfs mounts, created when missing. Default `["/run"]`, which is then filled as systemd-tmpfiles would (native/guest/tmpfiles.c). */
  readonly tmpfs?: readonly string[];
  /** Processes that may run at once in all guests of this agent together, where the system can count them. Default 4,096. */
  readonly maxProcesses?: number;
  /**
   * Ends users' processes when they have taken more memory than the sandbox was promised. For gVisor, whose sandbox would be
   * killed as a whole; watches all guests of the agent, so only the users' own has it. Default false.
   */
  readonly memoryGuard?: boolean;
  /**
   * Its programs live in a user namespace of its own (confine.h). For a machine whose kernel is the agent's too; holds for
   * containers as well. Default false.
   */
  readonly userNamespace?: boolean;
  /** Host name in its uts namespace; absent: the sandbox's. */
  readonly hostname?: string;
  /** Files or directories of the agent's view that show up in the guest. */
  readonly binds?: readonly {
    readonly source: string;
    readonly target: string;
    readonly readOnly?: boolean;
  }[];
}

/**
 * One root with its own pid, mount and ipc namespaces: the users' tree, or a container. Its pid 1 is ours and reaps orphans;
 * `close` kills pid 1 and with it every process of the guest.
 */
export interface Guest {
  /** Runs a program. Rejects with `SpawnError` naming the stage that failed. */
  spawn(request: SpawnRequest): Promise<GuestProcess>;
  /**
   * As `spawn`, but returns at once, and without `onStarted` spares the message that the program runs (and its pid): for
   * short programs. A failure to start rejects `exited`.
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
  /** Resolves when the guest has ended, for whatever reason. */
  readonly closed: Promise<void>;
  /**
   * Of a guest out of a template, in which nothing of a user's has run: it gets a boot id of its own, and what lies in memory the
   * size that fits this machine. What was in /run may be gone.
   */
  renew(): Promise<void>;
  /** Waits until none of its programs runs any more, at most `withinMs`. */
  settle(withinMs: number): Promise<void>;
  /** Kills everything and waits until it is gone, so that the disk can be unmounted. */
  close(): Promise<void>;
}

/**
 * The agent's one handle on users' land: which disk is attached, its guest, and the containers on it.
 *
 *     detached ──attach──▶ attached ──detach──▶ detached
 *                             │ pid 1 dies by itself: `lost` is emitted and a new guest is started on the same disk
 */
export interface Spawner {
  /** Starts the users' guest on `<diskPath>/fs`. */
  attach(diskPath: string, options?: Pick<GuestOptions, "maxProcesses">): Promise<void>;
  /** Closes every container and the users' guest; when it resolves nothing of ours holds the disk. */
  detach(): Promise<void>;
  /** While detached: a disk comes soon, so the guest's process is started ahead. Repeatable. */
  expectAttach(): void;
  /** The users' guest. Throws `unavailable` while detached. */
  readonly guest: Guest;
  /** Starts a container: its own root, pid, mount and ipc namespaces, the sandbox's network. `id` must be free. */
  openContainer(id: string, options: GuestOptions): Promise<Guest>;
  container(id: string): Guest | undefined;
  /**
   * Called when a guest ended that nobody closed: all its processes are gone. `container` is null for the users' guest, which
   * is started again; called once more, with why, each time that fails.
   */
  onLost(listener: LostListener): void;
  /** Called for every process that was killed because the sandbox's memory was used up. */
  onOutOfMemory(listener: (killed: KilledForMemory) => void): void;
}

export type LostListener = (container: string | null, cause: Error) => void;

export interface KilledForMemory {
  /** As the system calls it; at most 15 bytes. */
  readonly name: string;
  readonly memoryBytes: number;
}
