/**
 * One supervised service: its definition, its present phase, and the run that keeps it going.
 *
 *              start                        healthy (service-health.ts)
 *   idle ───────────────▶ pulling/starting ────────────────────────────────▶ running
 *    ▲  ▲                       │ launch, health or exit failed                 │ exits by itself
 *    │  └──── no restart ◀──────┴───────────────────────────────────────────────┤
 *    │                                                                          │ restart policy
 *    └── stop, from everywhere (SIGTERM, 10 s, SIGKILL: run-rules.ts)   backoff ◀┘──▶ starting
 *
 *   unknown: wanted according to the disk, and not yet started or given up.
 *
 * Status (spec/contract.md, services): `running`; when idle `failed` after a failure, else `stopped`; in all other phases `unknown` with the
 * phase. Owned by services/supervisor.ts. Only the ServiceFile survives a crash of the agent.
 */
import {
  ClocheError,
  limits,
  type PullProgress,
  type ServiceDefinition,
  type ServiceRecord,
} from "@cloche/protocol";
import { countdown } from "../exec/index.ts";
import type { GuestProcess, ProcessExit } from "../spawner/index.ts";
import { Backoff } from "./backoff.ts";
import type { ServiceFile } from "./catalog.ts";
import { pause } from "./health.ts";
import { LaunchError, type Launched, type LaunchedContainer, type Launcher } from "./launcher.ts";
import { type RunRules, runRules } from "./run-rules.ts";
import type { ServiceHealth } from "./health.ts";
import { healthOf } from "./service-health.ts";
import type { ServiceLog } from "./service-log.ts";

type State =
  | { kind: "unknown" }
  | { kind: "pulling"; pull?: PullProgress }
  | { kind: "idle"; failed: boolean }
  | { kind: "starting"; launched: Launched | undefined }
  | { kind: "running"; launched: Launched; health: ServiceHealth }
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
  /** Of services whose definition and image say nothing. */
  startTimeoutMs?: number;
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

  /** Whether it runs and is healthy. Reads procfs, so do not call it often. */
  get serving(): boolean {
    return this.#state.kind === "running" && this.#state.health.lost() === "";
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
    const lost = state.kind === "running" ? state.health.lost() : "";
    return {
      name: this.name,
      cmd: this.definition.cmd,
      status: waiting || lost !== "" ? "unknown" : statusOf(state),
      pid: launched?.process.pid ?? 0,
      container: this.definition.container ?? false,
      exit_code: this.#exitCode,
      restarts: this.#restarts,
      error: lost === "" ? this.#error : lost,
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
   * meanwhile, or kept failing for its whole start timeout.
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
    const beganAtMs = performance.now();
    let patience: NodeJS.Timeout | undefined;
    let end: End;
    for (;;) {
      const startedAtMs = performance.now();
      this.#state = { kind: "starting", launched: undefined };
      end = await this.#attempt(run);
      if (run.stop.signal.aborted) break;
      const policy = this.definition.restart ?? "never";
      if (policy === "never" || (policy === "on-failure" && !end.failed)) break;
      const nowMs = performance.now();
      // The service may fail and restart for ever; callers that wait get an answer after the start timeout.
      patience ??= setTimeout(
        () => run.reached.resolve(false),
        this.#rules(this.definition).startTimeoutMs - (nowMs - beganAtMs),
      );
      const delayMs = backoff.next(nowMs - startedAtMs);
      this.#notify(end);
      this.#state = { kind: "backoff" };
      this.#parts.log.note(`restarts in ${delayMs} ms`);
      await pause(delayMs, run.stop.signal);
      if (run.stop.signal.aborted) break;
      this.#restarts += 1;
    }
    clearTimeout(patience);
    const stopped = run.stop.signal.aborted;
    this.#notify(stopped ? { ...end, error: "" } : end);
    this.#state = { kind: "idle", failed: end.failed && !stopped };
    this.#run = undefined;
    if (!stopped) {
      this.#wanted = false;
      this.#saveLater();
    }
    run.reached.resolve(false);
  }

  #notify(end: End): void {
    this.#exitCode = end.exitCode;
    this.#error = end.error;
  }

  #rules(definition: ServiceDefinition, launched?: Launched): RunRules {
    return runRules(definition, launched?.container?.image, {
      startTimeoutMs: this.#parts.startTimeoutMs ?? limits.serviceStartTimeoutMs,
      stopTimeoutMs: this.#parts.stopTimeoutMs ?? limits.serviceStopTimeoutMs,
    });
  }

  async #attempt(run: Run): Promise<End> {
    const { launcher, log, onOutput } = this.#parts;
    const { definition } = this; // of this attempt, also if it is replaced meanwhile
    let launched: Launched;
    try {
      launched = await launcher.launch({
        name: this.name,
        definition,
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
      return await this.#supervise(run, launched, definition);
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

  async #supervise(run: Run, launched: Launched, definition: ServiceDefinition): Promise<End> {
    const { log } = this.#parts;
    const { process } = launched;
    const rules = this.#rules(definition, launched);
    const health = healthOf(definition, launched, (text) => log.note(text));
    const exited = process.exited.catch((): ProcessExit => ({ code: 137, signal: 9 }));
    this.#state = { kind: "starting", launched };
    log.note(`started, pid ${process.pid}`);
    const late = new AbortController();
    const stopCountdown = countdown(rules.startTimeoutMs, () => late.abort());
    const healthy = await during(AbortSignal.any([run.stop.signal, late.signal]), (over) =>
      Promise.race([health.comesUp(over), exited.then(() => false)]),
    );
    stopCountdown();
    if (healthy && !run.stop.signal.aborted) {
      this.#state = { kind: "running", launched, health };
      this.#notify({ failed: false, exitCode: null, error: "" });
      run.reached.resolve(true);
      await during(run.stop.signal, (over) => {
        void health.watch(over);
        return Promise.race([exited, aborted(over)]);
      });
    }
    if (run.stop.signal.aborted) {
      await this.#terminate(run, launched, rules);
      const { code } = await exited;
      log.note("stopped");
      return { failed: false, exitCode: code, error: "" };
    }
    if (!healthy && (await settledNow(exited)) === undefined) {
      const error = health.late(`within ${rules.startTimeoutMs / 1000} s`);
      log.note(error);
      await this.#terminate(run, launched, rules); // it may be in the middle of setting up its data
      return { failed: true, exitCode: (await exited).code, error: withMemory(error, process) };
    }
    await process.kill(); // processes that the program left behind
    const { code, signal } = await exited;
    const how = signal === null ? `exited with code ${code}` : `was ended by signal ${signal}`;
    const why = healthy ? (code === 0 ? "" : how) : `${how} before ${health.goal}`;
    const error = withMemory(why, process);
    log.note(error === "" ? "exited with code 0" : error);
    return { failed: error !== "", exitCode: code, error };
  }

  async #terminate(run: Run, { process }: Launched, { stop, stopTimeoutMs }: RunRules): Promise<void> {
    const ended = process.ended.catch(() => undefined);
    if (!run.kill.signal.aborted) {
      process.signal(stop.signal, stop.scope);
      await during(run.kill.signal, (over) => Promise.race([ended, pause(stopTimeoutMs, over)]));
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

const commandGraceMs = 5_000;

function statusOf(state: State): ServiceRecord["status"] {
  if (state.kind === "running") return "running";
  if (state.kind === "idle") return state.failed ? "failed" : "stopped";
  return "unknown";
}

function phaseOf({ kind }: State): ServiceRecord["phase"] {
  return kind === "pulling" || kind === "starting" || kind === "backoff" ? kind : "";
}

const withMemory = (why: string, { outOfMemory }: GuestProcess): string =>
  why !== "" && outOfMemory ? `${why}: the sandbox's memory is used up` : why;

/** Runs `work` with a signal that aborts when `outer` does, and when the work has ended. */
async function during<Value>(
  outer: AbortSignal,
  work: (over: AbortSignal) => Promise<Value>,
): Promise<Value> {
  const over = new AbortController();
  const end = (): void => over.abort();
  outer.addEventListener("abort", end, { once: true });
  if (outer.aborted) end();
  try {
    return await work(over.signal);
  } finally {
    outer.removeEventListener("abort", end);
    end();
  }
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
