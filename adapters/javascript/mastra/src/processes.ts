/** Mastra's processes on Cloche's, which live in the sandbox: a handle follows one, and a lost connection is made again. */
import {
  type CommandResult,
  type MastraSandbox,
  ProcessHandle,
  type ProcessInfo,
  SandboxProcessManager,
  type SpawnProcessOptions,
} from "@mastra/core/workspace";
import { ClocheApiError, type Sandbox, type SandboxProcess } from "@cloche/sdk";

/** Marks the processes that were started here. */
const tag = "mastra";
/** What the service keeps of each stream, the newest; the most that it takes. */
const keptBytes = 67_108_864;
/** An ended process is remembered so long. */
const keepSeconds = 600;
/** As coreutils' `timeout` says it; and as a shell says it of a process that was killed. */
const [timedOutCode, killedCode] = [124, 137];

/** Mastra's sandbox of these processes. */
export interface Alive extends MastraSandbox {
  /** Calls the machine, once it is there again. */
  alive<T>(call: (sandbox: Sandbox) => Promise<T>): Promise<T>;
}

export class ClocheProcesses extends SandboxProcessManager<Alive> {
  readonly #user: string | undefined;

  constructor(user: string | undefined) {
    super();
    this.#user = user;
  }

  override async spawn(command: string, options: SpawnProcessOptions = {}): Promise<ProcessHandle> {
    const dir = options.cwd ?? this.sandbox.workingDirectory;
    const env = Object.entries({ ...this.env, ...options.env }).filter(([, value]) => value !== undefined);
    const process = await this.sandbox.alive(({ processes }) =>
      processes.start(["bash", "-c", command], {
        env: Object.fromEntries(env) as Record<string, string>,
        stdin: options.stdinMode === "ignore" ? "none" : "open",
        output_limit_bytes: keptBytes,
        keep_seconds: keepSeconds,
        tag,
        ...(dir !== undefined && { dir }),
        ...(this.#user !== undefined && { user: this.#user }),
        ...(options.timeout !== undefined && { timeout_ms: options.timeout }),
      }),
    );
    const handle = new ClocheProcessHandle(process, options);
    this._tracked.set(handle.pid, handle);
    return handle;
  }

  /** Those of other objects for the same sandbox too. */
  override async list(): Promise<ProcessInfo[]> {
    const found = await this.sandbox.alive(({ processes }) => processes.list());
    return found
      .filter((one) => one.tag === tag && !this._dismissed.has(one.process_id))
      .map(({ process_id: pid, cmd, status, exit_code }) => ({
        pid,
        command: cmd.at(-1) ?? "",
        running: status === "running",
        ...(exit_code !== null && { exitCode: exit_code }),
      }));
  }

  override async get(pid: string): Promise<ProcessHandle | undefined> {
    const known = this._tracked.get(pid);
    if (known !== undefined) return known;
    try {
      const process = await this.sandbox.alive(({ processes }) => processes.get(pid));
      const handle = new ClocheProcessHandle(process);
      await handle.caughtUp;
      this._tracked.set(pid, handle);
      return handle;
    } catch (error) {
      const isUnknown = error instanceof ClocheApiError && error.status >= 400 && error.status < 500;
      if (isUnknown) return undefined;
      throw error;
    }
  }
}

class ClocheProcessHandle extends ProcessHandle {
  readonly pid: string;
  exitCode: number | undefined;
  /** Resolves once it has the output that was there at the beginning; of one that has ended, all and its end. */
  readonly caughtUp: Promise<void>;
  readonly #process: SandboxProcess;
  /** Started here: then nothing of its output may be missing. */
  readonly #isOurs: boolean;
  readonly #ended: Promise<CommandResult>;

  constructor(process: SandboxProcess, options?: SpawnProcessOptions) {
    super(options);
    this.pid = process.id;
    this.#process = process;
    this.#isOurs = options !== undefined;
    let caught = (): void => undefined;
    this.caughtUp = new Promise((resolve) => (caught = resolve));
    this.#ended = this.#follow(caught);
    this.#ended.then(caught, caught);
  }

  async #follow(caught: () => void): Promise<CommandResult> {
    const { stdout_bytes, stderr_bytes, started_at, status } = this.#process.info;
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    const seen = { stdout: 0, stderr: 0 };
    const emit = {
      stdout: (text: string) => this.emitStdout(text),
      stderr: (text: string) => this.emitStderr(text),
    };
    const look = (): void => {
      if (status === "running" && seen.stdout >= stdout_bytes && seen.stderr >= stderr_bytes) caught();
    };
    look();
    for await (const event of this.#process) {
      if (event.type === "exit") {
        const { exit_code, timed_out, signal } = event.process;
        const exitCode = timed_out ? timedOutCode : (exit_code ?? killedCode);
        this.exitCode = exitCode;
        const { stdout, stderr } = this;
        const executionTimeMs = Date.parse(event.process.ended_at ?? started_at) - Date.parse(started_at);
        const how = { timedOut: timed_out, killed: signal !== null };
        return { success: exitCode === 0, exitCode, stdout, stderr, executionTimeMs, ...how };
      }
      if (event.type === "gap") {
        if (this.#isOurs)
          throw new Error(
            `output was read too slowly: ${event.to - event.from} bytes of ${event.stream} are lost`,
          );
        seen[event.stream] = event.to;
        continue;
      }
      seen[event.type] = event.offset + event.data.length;
      const text = decoders[event.type].decode(event.data, { stream: true });
      if (text !== "") emit[event.type](text);
      look();
    }
    throw new Error("the process did not end");
  }

  override wait(): Promise<CommandResult> {
    return this.#ended;
  }

  override async kill(): Promise<boolean> {
    if (this.exitCode !== undefined) return false;
    try {
      await this.#process.signal("SIGKILL");
      return true;
    } catch (error) {
      if (error instanceof ClocheApiError && hasEnded.has(error.code)) return false;
      throw error;
    }
  }

  override async sendStdin(data: string): Promise<void> {
    if (this.exitCode !== undefined)
      throw new Error(`the process ${this.pid} has ended with code ${this.exitCode}`);
    await this.#process.write(data);
  }

  override async closeStdin(): Promise<void> {
    await this.#process.endInput();
  }
}

const hasEnded = new Set<string>(["failed_precondition", "not_found"]);
