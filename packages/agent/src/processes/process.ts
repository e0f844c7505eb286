/**
 * One process of the table: its request, its output, and its end.
 *
 *     new ──run──▶ running ──its program ends, or its guest is gone──▶ exited
 *                     └──could not be started, by a fault of the request──▶ (thrown; not listed)
 *
 * Owned by the ProcessTable, in the agent's memory. Suspend, fork and a restore of the disk keep it; the end of the machine does not
 * (process-records.ts). Output that children of the program write after its end is dropped.
 */
import {
  ClocheError,
  limits,
  type ProcessEndedBy,
  type ProcessInfo,
  type ProcessKind,
} from "@cloche/protocol";
import { notExecuted } from "../commands/failures.ts";
import {
  type Command,
  type CommandEnd,
  isLost,
  launchCommand,
  type LaunchedCommand,
  type Taker,
} from "../commands/run-command.ts";
import {
  type Guest,
  type GuestProcess,
  type OutputStream,
  SpawnError,
  type TerminalSize,
} from "../spawner/index.ts";
import { OutputLog } from "./output-log.ts";
import { signalName, signalNumber } from "./signals.ts";

/** Why a process is being ended. `abort`: the client of an exec went away. */
export type Ending = "timeout" | "delete" | "restore" | "abort";

export interface ProcessSpec {
  readonly kind: ProcessKind;
  readonly cmd: readonly string[];
  readonly dir: string | undefined;
  readonly user: string | undefined;
  readonly tag: string;
  readonly tty: TerminalSize | undefined;
  readonly stdin: "none" | "open";
  readonly mergeOutput: boolean;
  readonly keepSeconds: number;
  readonly stdout: OutputLog;
  readonly stderr: OutputLog;
}

export interface ProcessParts {
  /** Gives the process an id by which the table finds it. */
  newId(process: Process): string;
  nowMs(): number;
  /** Called for every piece of output: a sandbox with output is not idle. */
  onActivity(): void;
  /** Called once, when the process has ended. */
  onEnd(process: Process): void;
}

const endOfFile = Buffer.from([4]);
const killed: Pick<CommandEnd, "exitCode" | "signal"> = { exitCode: 137, signal: 9 };
/** How long a list waits for the pid of an exec, which must be requested. */
const pidWaitMs = 500;

export class Process {
  readonly spec: ProcessSpec;
  /** Resolves when the process has ended and all its output is in the logs. Never rejects. */
  readonly finished: Promise<void>;
  readonly #parts: ProcessParts;
  readonly #startedAtMs: number;
  readonly #finish = Promise.withResolvers<void>();
  #id: string | undefined;
  #running: GuestProcess | undefined;
  #ending: Ending | undefined;
  #end: { exitCode: number; signal: number | null; by: ProcessEndedBy; atMs: number } | undefined;
  #stdinClosed = false;
  #size: TerminalSize | undefined;
  #readers = 0;

  /** `stored`: the record of a process that ended before a cold start. */
  constructor(spec: ProcessSpec, parts: ProcessParts, stored?: ProcessInfo) {
    this.spec = spec;
    this.#parts = parts;
    this.#startedAtMs = stored === undefined ? parts.nowMs() : Date.parse(stored.started_at);
    this.#size = spec.tty;
    this.finished = this.#finish.promise;
    if (stored === undefined) return;
    this.#id = stored.process_id;
    this.#end = {
      exitCode: stored.exit_code ?? killed.exitCode,
      signal: stored.status === "running" ? killed.signal : signalNumber(stored.signal),
      by: stored.ended_by ?? "machine_restart",
      atMs: stored.ended_at === null ? parts.nowMs() : Date.parse(stored.ended_at),
    };
    this.#finish.resolve();
  }

  /** Made on first use: most execs end without one. */
  get id(): string {
    this.#id ??= this.#parts.newId(this);
    return this.#id;
  }

  get knownId(): string | undefined {
    return this.#id;
  }

  get hasEnded(): boolean {
    return this.#end !== undefined;
  }

  get endedBy(): ProcessEndedBy | undefined {
    return this.#end?.by;
  }

  get endedAtMs(): number {
    return this.#end?.atMs ?? Infinity;
  }

  /** Whether it is being killed because its client went away. */
  get isAborted(): boolean {
    return this.#ending === "abort";
  }

  /** Resolves as `end` of the command. Throws the error that exec answers if the program could not be started (commands/failures.ts). */
  async run(guest: Guest, command: Command, tap?: Taker, onStarted?: () => void): Promise<CommandEnd> {
    const take: Taker = (stream, chunk) => {
      this.take(stream, chunk);
      return tap?.(stream, chunk);
    };
    const launchedMs = performance.now();
    let launched: LaunchedCommand;
    try {
      launched = launchCommand(guest, command, take, onStarted);
    } catch (error) {
      this.#over({ ...killed, by: "exit" });
      throw error;
    }
    this.#running = launched.process;
    try {
      const end = await launched.end;
      this.#over({ exitCode: end.exitCode, signal: end.signal, by: this.#endedBy(end) });
      return end;
    } catch (error) {
      return await this.#notRun(error, command, take, launchedMs);
    }
  }

  /** Follows a process that the supervisor has started; its output comes by `take`. */
  follow(running: GuestProcess): void {
    this.#running = running;
    running.exited.then(
      ({ code, signal }) => this.#over({ exitCode: code, signal, by: signal === null ? "exit" : "signal" }),
      () => this.#over({ ...killed, by: this.#ending === "restore" ? "restore" : "signal" }),
    );
  }

  take(stream: OutputStream, chunk: Buffer): void {
    this.#parts.onActivity();
    (stream === "stderr" && !this.spec.mergeOutput ? this.spec.stderr : this.spec.stdout).append(chunk);
  }

  /** Kills the whole tree; resolves when it has ended. */
  async kill(why: Ending): Promise<void> {
    this.#ending ??= why;
    await this.#running?.kill();
    // Processes of the tree that outlived the program are gone now, too.
    if (this.#running !== undefined) await this.finished;
  }

  /** Notes why the process will end by the closing of its guest. */
  expectEnd(why: Ending): void {
    if (!this.hasEnded) this.#ending ??= why;
  }

  signal(number: number): void {
    this.#alive("signalled").signal(number, "group");
  }

  resize(size: TerminalSize): void {
    if (this.spec.tty === undefined)
      throw new ClocheError("failed_precondition", "the process has no terminal (tty)", {
        reason: "no_terminal",
      });
    this.#alive("resized").resize(size);
    this.#size = size;
  }

  /** Resolves when there is room for more. Throws 409 if its standard input is closed or was never open. */
  async write(data: Buffer): Promise<void> {
    const running = this.checkStdin();
    await running.write(data);
  }

  /** Ends its standard input; a terminal gets the end-of-file character. May be repeated. */
  endStdin(): void {
    if (this.#stdinClosed && !this.hasEnded) return;
    const running = this.checkStdin();
    this.#stdinClosed = true;
    if (this.spec.tty !== undefined) void running.write(endOfFile);
    running.end();
  }

  /** Throws 409 where a write would. */
  checkStdin(): GuestProcess {
    if (this.spec.stdin === "none") {
      throw new ClocheError(
        "failed_precondition",
        'the process was started without standard input; start it with "stdin": "open"',
        { reason: "input_closed" },
      );
    }
    const running = this.#alive("written to");
    if (this.#stdinClosed)
      throw new ClocheError("failed_precondition", "the standard input of the process is closed", {
        reason: "input_closed",
      });
    return running;
  }

  /** Counts a reader of its output; call the answer when the reader is gone. Throws 429 beyond the limit. */
  admitReader(): () => void {
    if (this.#readers >= limits.processReaders) {
      throw new ClocheError(
        "resource_exhausted",
        `the process has ${limits.processReaders} readers already; end one of them first`,
        { resource: "quota" },
      );
    }
    this.#readers += 1;
    let reads = true;
    return () => {
      if (reads) this.#readers -= 1;
      reads = false;
    };
  }

  /** Requests the pid of a process that was started without a report of it. */
  async findPid(): Promise<void> {
    if (!this.hasEnded && this.#running?.pid === 0) await this.#running.findPid(pidWaitMs);
  }

  info(): ProcessInfo {
    const { spec } = this;
    const end = this.#end;
    return {
      process_id: this.id,
      pid: end === undefined ? (this.#running?.pid ?? 0) : 0,
      kind: spec.kind,
      cmd: shown(spec.cmd),
      dir: spec.dir ?? "",
      user: spec.user ?? "root",
      tag: spec.tag,
      status: end === undefined ? "running" : "exited",
      exit_code: end?.exitCode ?? null,
      signal: end === undefined || end.signal === null ? null : signalName(end.signal),
      timed_out: end?.by === "timeout",
      ended_by: end?.by ?? null,
      started_at: new Date(this.#startedAtMs).toISOString(),
      ended_at: end === undefined ? null : new Date(end.atMs).toISOString(),
      tty: this.#size === undefined ? null : { ...this.#size },
      stdin: spec.stdin === "open" && (this.#stdinClosed || end !== undefined) ? "closed" : spec.stdin,
      stdout_bytes: spec.stdout.totalBytes,
      stderr_bytes: spec.stderr.totalBytes,
    };
  }

  #alive(what: string): GuestProcess {
    if (this.#running === undefined || this.hasEnded) {
      throw new ClocheError("failed_precondition", `the process has ended and cannot be ${what}`, {
        reason: "process_ended",
      });
    }
    return this.#running;
  }

  async #notRun(error: unknown, command: Command, take: Taker, launchedMs: number): Promise<CommandEnd> {
    if (isLost(error) || !(error instanceof SpawnError)) {
      this.#over({ ...killed, by: this.#ending === "restore" ? "restore" : "signal" });
      if (!(error instanceof SpawnError)) throw error;
    }
    let failure: ReturnType<typeof notExecuted>;
    try {
      failure = notExecuted(error, command);
    } catch (fault) {
      this.#over({ ...killed, by: "exit" });
      throw fault;
    }
    const { exitCode, message } = failure;
    await take("stderr", Buffer.from(message));
    this.#over({ exitCode, signal: null, by: "exit" });
    const durationMs = Math.round(performance.now() - launchedMs);
    return { exitCode, signal: null, timedOut: false, outOfMemory: false, durationMs };
  }

  #endedBy({ timedOut, outOfMemory, signal }: CommandEnd): ProcessEndedBy {
    if (timedOut) return "timeout";
    if (this.#ending === "delete" || this.#ending === "restore") return this.#ending;
    if (signal === null) return "exit";
    return outOfMemory && signal === killed.signal ? "out_of_memory" : "signal";
  }

  #over(end: { exitCode: number; signal: number | null; by: ProcessEndedBy }): void {
    if (this.#end !== undefined) return;
    this.#end = { ...end, atMs: this.#parts.nowMs() };
    this.spec.stdout.end();
    this.spec.stderr.end();
    this.#parts.onEnd(this);
    this.#finish.resolve();
  }
}

/** The beginning of a command, for lists. */
function shown(cmd: readonly string[]): string[] {
  const args: string[] = [];
  let room: number = limits.processCommandShownBytes;
  for (const arg of cmd) {
    if (room <= 0) break;
    args.push(arg.length <= room ? arg : arg.slice(0, room));
    room -= arg.length + 1;
  }
  return args;
}
