/**
 * One supervised service: its definition, its present phase, and the run that keeps it going.
 *
 *              start                        port accepts, or no health_port
 *   idle ───────────────▶ pulling/starting ────────────────────────────────▶ running
 *    ▲  ▲                       │ launch, health or exit failed                 │ exits by itself
 *    │  └──── no restart ◀──────┴───────────────────────────────────────────────┤
 *    │                                                                          │ restart policy
 *    └── stop, from everywhere (SIGTERM, 10 s, SIGKILL, whole tree)     backoff ◀┘──▶ starting
 *
 *   unknown: wanted according to the disk, and not yet started or given up.
 *
 * Status (spec/contract.md, services): `running`; when idle `failed` after a failure, else `stopped`; in all other phases `unknown` with the
 * phase. Owned by services/supervisor.ts. Only the ServiceFile survives a crash of the agent.
 */
import { readdirSync } from "node:fs";
import {
  ClocheError,
  limits,
  type PullProgress,
  type ServiceDefinition,
  type ServiceRecord,
} from "@cloche/protocol";
import { listens } from "../ports/listeners.ts";
import type { ProcessExit } from "../spawner/index.ts";
import { Backoff } from "./backoff.ts";
import type { ServiceFile } from "./catalog.ts";
import { pause, waitForPort } from "./health.ts";
import { LaunchError, type Launched, type LaunchedContainer, type Launcher } from "./launcher.ts";
import type { ServiceLog } from "./service-log.ts";

type State =
  | { kind: "unknown" }
  | { kind: "pulling"; pull?: PullProgress }
  | { kind: "idle"; failed: boolean }
  | { kind: "starting"; launched: Launched | undefined }
  | { kind: "running"; launched: Launched }
  | { kind: "backoff" };

/** How one attempt to run the service ended. */
interface End {
  failed: boolean;
  exitCode: number | null;
  error: string;
}

interface Run {
  /** Aborted to end the run gracefully. */
  stop: AbortController;
  /** Aborted to end the run at once. */
  kill: AbortController;
  /** Resolves true when the service reached running, false when it ended before that or kept failing. */
  reached: PromiseWithResolvers<boolean>;
  done: Promise<void>;
}

export interface ServiceParts {
  launcher: Launcher;
  log: ServiceLog;
  save(file: ServiceFile): Promise<void>;
  onOutput(): void;
  healthTimeoutMs?: number;
  stopTimeoutMs?: number;
}

export class Service {
  readonly name: string;
  definition: ServiceDefinition;
  /** Grows with every stop, so that a start that still waits for needs gives up. */
  epoch = 0;
  readonly #parts: ServiceParts;
  #state: State;
  #run: Run | undefined;
  #wanted: boolean;
  #waiters = 0;
  #restarts = 0;
  #exitCode: number | null;
  #error: string;
  /** The health port of the present run's definition. */
  #healthPort: number | undefined;

  constructor(name: string, file: ServiceFile, parts: ServiceParts) {
    this.name = name;
    this.definition = file.definition;
    this.#parts = parts;
    this.#wanted = file.wanted;
    this.#exitCode = file.exitCode;
    this.#error = file.error;
    this.#state = file.wanted ? { kind: "unknown" } : { kind: "idle", failed: file.failed };
  }

  get log(): ServiceLog {
    return this.#parts.log;
  }

  get running(): boolean {
    return this.#state.kind === "running";
  }

  /** Whether it runs and, if it has a health port, a process of its tree listens there. Reads procfs, so do not call it often. */
  get serving(): boolean {
    return this.#state.kind === "running" && this.#holdsPort(this.#state.launched);
  }

  /** Whether a run is under way: pulling, starting, running or backing off. */
  get active(): boolean {
    return this.#run !== undefined;
  }

  get wanted(): boolean {
    return this.#wanted;
  }

  /** The container of the present run. */
  get container(): LaunchedContainer | undefined {
    return this.#state.kind === "running" || this.#state.kind === "starting"
      ? this.#state.launched?.container
      : undefined;
  }

  file(): ServiceFile {
    return {
      definition: this.definition,
      wanted: this.#wanted,
      failed: this.#state.kind === "idle" && this.#state.failed,
      exitCode: this.#exitCode,
      error: this.#error,
    };
  }

  record(): ServiceRecord {
    const state = this.#state;
    const launched = state.kind === "running" || state.kind === "starting" ? state.launched : undefined;
    const waiting = this.#waiters > 0 && !this.active;
    const lostPort = state.kind === "running" && !this.serving;
    return {
      name: this.name,
      cmd: this.definition.cmd,
      status: waiting || lostPort ? "unknown" : statusOf(state),
      pid: launched?.process.pid ?? 0,
      container: this.definition.container ?? false,
      exit_code: this.#exitCode,
      restarts: this.#restarts,
      error: lostPort ? `no process of it listens on port ${this.#healthPort} any more` : this.#error,
      phase: waiting ? "starting" : phaseOf(state),
      ...(state.kind === "pulling" && state.pull !== undefined ? { pull: state.pull } : {}),
    };
  }

  /** Shows the service as starting while its needs are started. Call the answer when they are. */
  awaitNeeds(): () => void {
    this.#waiters += 1;
    return () => {
      this.#waiters -= 1;
    };
  }

  /**
   * Starts the service, or joins a start under way. Resolves true when it reached running; false when it ended before that, was stopped
   * meanwhile, or kept failing for the whole health timeout.
   */
  start(): Promise<boolean> {
    if (this.#run !== undefined) return this.#run.reached.promise;
    const run: Run = {
      stop: new AbortController(),
      kill: new AbortController(),
      reached: Promise.withResolvers<boolean>(),
      done: Promise.resolve(),
    };
    this.#run = run;
    this.#wanted = true;
    this.#restarts = 0;
    this.#exitCode = null;
    this.#error = "";
    this.#state = { kind: "starting", launched: undefined };
    this.#saveLater();
    run.done = this.#live(run);
    return run.reached.promise;
  }

  /** Stops the service gracefully. Resolves when its tree is gone and the desired state is on the disk. */
  async stop(): Promise<void> {
    this.epoch += 1;
    const run = this.#run;
    run?.stop.abort();
    await run?.done;
    if (this.#state.kind === "unknown") this.#state = { kind: "idle", failed: false };
    if (!this.#wanted) return;
    this.#wanted = false;
    await this.#saveAnyhow(); // a full disk does not prevent a stop
  }

  /** Ends the run, at once or gracefully, without changing the desired state: before the disk is detached or the machine ends. */
  async halt(how: "stop" | "kill"): Promise<void> {
    this.epoch += 1;
    const run = this.#run;
    run?.stop.abort();
    if (how === "kill") run?.kill.abort();
    await run?.done;
  }

  /** The service will not be started: ends the phase `unknown`. */
  giveUp(): void {
    if (this.#state.kind !== "unknown") return;
    this.#state = { kind: "idle", failed: false };
    this.#wanted = false;
    this.#saveLater();
  }

  async #live(run: Run): Promise<void> {
    const backoff = new Backoff();
    const healthTimeoutMs = this.#parts.healthTimeoutMs ?? limits.serviceHealthTimeoutMs;
    const beganAtMs = performance.now();
    let patience: NodeJS.Timeout | undefined;
    let end: End;
    for (;;) {
      const startedAtMs = performance.now();
      this.#state = { kind: "starting", launched: undefined };
      end = await this.#attempt(run, healthTimeoutMs);
      if (run.stop.signal.aborted) break;
      const policy = this.definition.restart ?? "never";
      if (policy === "never" || (policy === "on-failure" && !end.failed)) break;
      const nowMs = performance.now();
      // The service may fail and restart for ever; callers that wait get an answer after the health timeout.
      patience ??= setTimeout(() => run.reached.resolve(false), healthTimeoutMs - (nowMs - beganAtMs));
      const delayMs = backoff.next(nowMs - startedAtMs);
      this.#tell(end);
      this.#state = { kind: "backoff" };
      this.#parts.log.note(`restarts in ${delayMs} ms`);
      await pause(delayMs, run.stop.signal);
      if (run.stop.signal.aborted) break;
      this.#restarts += 1;
    }
    clearTimeout(patience);
    const stopped = run.stop.signal.aborted;
    this.#tell(stopped ? { ...end, error: "" } : end);
    this.#state = { kind: "idle", failed: end.failed && !stopped };
    this.#run = undefined;
    if (!stopped) {
      this.#wanted = false;
      this.#saveLater();
    }
    run.reached.resolve(false);
  }

  #tell(end: End): void {
    this.#exitCode = end.exitCode;
    this.#error = end.error;
  }

  async #attempt(run: Run, healthTimeoutMs: number): Promise<End> {
    const { launcher, log, onOutput } = this.#parts;
    this.#healthPort = this.definition.health_port;
    let launched: Launched;
    try {
      launched = await launcher.launch({
        name: this.name,
        definition: this.definition,
        log,
        onPhase: (phase) => {
          this.#state = phase === "pulling" ? { kind: "pulling" } : { kind: "starting", launched: undefined };
        },
        onPull: (pull) => {
          if (this.#state.kind === "pulling") this.#state = { kind: "pulling", pull };
        },
        onOutput,
        signal: run.stop.signal,
      });
    } catch (error) {
      if (run.stop.signal.aborted) return { failed: false, exitCode: null, error: "" };
      return this.#notLaunched(error);
    }
    try {
      return await this.#supervise(run, launched, healthTimeoutMs);
    } finally {
      // A command in the container that ended the program (such as a shutdown) still needs time to end by itself.
      await launched.release(run.stop.signal.aborted ? 0 : commandGraceMs);
    }
  }

  #notLaunched(thrown: unknown): End {
    const isPublic = thrown instanceof LaunchError || thrown instanceof ClocheError;
    const error = isPublic ? thrown.message : "it could not be started";
    this.#parts.log.note(error);
    return { failed: true, exitCode: thrown instanceof LaunchError ? thrown.exitCode : null, error };
  }

  async #supervise(run: Run, launched: Launched, healthTimeoutMs: number): Promise<End> {
    const { log } = this.#parts;
    const { process } = launched;
    const exited = process.exited.catch((): ProcessExit => ({ code: 137, signal: 9 }));
    this.#state = { kind: "starting", launched };
    log.note(`started, pid ${process.pid}`);
    const healthy = await this.#healthy(run, launched, exited, healthTimeoutMs);
    if (healthy && !run.stop.signal.aborted) {
      this.#state = { kind: "running", launched };
      this.#tell({ failed: false, exitCode: null, error: "" });
      run.reached.resolve(true);
      await Promise.race([exited, aborted(run.stop.signal)]);
    }
    if (run.stop.signal.aborted) {
      await this.#terminate(run, launched);
      const { code } = await exited;
      log.note("stopped");
      return { failed: false, exitCode: code, error: "" };
    }
    const timedOut = !healthy && (await settledNow(exited)) === undefined;
    await process.kill(); // processes that the program left behind, or the program itself if it never became healthy
    const { code, signal } = await exited;
    const why = this.#whyEnded(healthy, timedOut, code, signal, healthTimeoutMs);
    const error = why !== "" && process.outOfMemory ? `${why}: the sandbox's memory is used up` : why;
    log.note(error === "" ? "exited with code 0" : error);
    return { failed: error !== "", exitCode: code, error };
  }

  #whyEnded(
    healthy: boolean,
    timedOut: boolean,
    code: number,
    signal: number | null,
    timeoutMs: number,
  ): string {
    const port = this.#healthPort;
    if (timedOut) {
      const within = `within ${timeoutMs / 1000} s`;
      return port !== undefined && listens(port, everybody)
        ? `port ${port} was not the service's own ${within}: another process listens there`
        : `port ${port} did not accept connections ${within}`;
    }
    const how = signal === null ? `exited with code ${code}` : `was ended by signal ${signal}`;
    if (!healthy) return `${how} before port ${port} accepted connections`;
    return code === 0 ? "" : how;
  }

  /** False if the program exited, or the time ran out, before the port accepted. True without a health port. */
  async #healthy(
    run: Run,
    launched: Launched,
    exited: Promise<ProcessExit>,
    timeoutMs: number,
  ): Promise<boolean> {
    const port = this.#healthPort;
    if (port === undefined) return true;
    const over = new AbortController();
    const timeout = setTimeout(() => over.abort(), timeoutMs);
    const onStop = (): void => over.abort();
    run.stop.signal.addEventListener("abort", onStop, { once: true });
    if (run.stop.signal.aborted) over.abort();
    try {
      const own = (): boolean => this.#holdsPort(launched);
      return await Promise.race([waitForPort(port, own, over.signal), exited.then(() => false)]);
    } finally {
      clearTimeout(timeout);
      run.stop.signal.removeEventListener("abort", onStop);
      over.abort();
    }
  }

  #holdsPort({ process }: Launched): boolean {
    const port = this.#healthPort;
    return port === undefined || listens(port, () => process.tree());
  }

  async #terminate(run: Run, { process }: Launched): Promise<void> {
    const ended = process.ended.catch(() => undefined);
    if (!run.kill.signal.aborted) {
      process.signal(sigterm, "tree");
      const over = new AbortController();
      const timeoutMs = this.#parts.stopTimeoutMs ?? limits.serviceStopTimeoutMs;
      await Promise.race([ended, aborted(run.kill.signal), pause(timeoutMs, over.signal)]);
      over.abort();
    }
    await process.kill();
    await ended;
  }

  /** Saves the state for a cold start. A full disk must not prevent running or stopping a service. */
  #saveLater(): void {
    void this.#saveAnyhow();
  }

  #saveAnyhow(): Promise<void> {
    return this.#parts.save(this.file()).catch(() => this.#parts.log.note("its state could not be saved"));
  }
}

const everybody = (): number[] => readdirSync("/proc").map(Number).filter(Number.isInteger);
const sigterm = 15;
const commandGraceMs = 5_000;

function statusOf(state: State): ServiceRecord["status"] {
  if (state.kind === "running") return "running";
  if (state.kind === "idle") return state.failed ? "failed" : "stopped";
  return "unknown";
}

function phaseOf({ kind }: State): ServiceRecord["phase"] {
  return kind === "pulling" || kind === "starting" || kind === "backoff" ? kind : "";
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  const { promise, resolve } = Promise.withResolvers<void>();
  signal.addEventListener("abort", () => resolve(), { once: true });
  return promise;
}

/** The value of a promise that is already settled, else undefined. */
function settledNow<Value>(promise: Promise<Value>): Promise<Value | undefined> {
  return Promise.race([promise, new Promise<undefined>((resolve) => setImmediate(() => resolve(undefined)))]);
}
