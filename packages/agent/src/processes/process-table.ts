/**
 * The processes of the sandbox, running ones and remembered ones that have ended (docs/processes.md).
 *
 *   process             listed from its start until `keep_seconds` after its end, or DELETE
 *   exec                listed while it runs; afterwards only if its client was cut off and cannot get the answer
 *   service, container  listed while they run; the supervisor owns them
 *
 * The table is in the agent's memory. Suspend and fork save it as it is. A restore of the disk ends running processes and keeps the
 * table. For a cold start it is also recorded on the disk (process-records.ts).
 */
import { ClocheError, limits, newProcessId, type ProcessInfo, type ProcessKind } from "@cloche/protocol";
import type { Command, CommandEnd, Taker } from "../commands/run-command.ts";
import type { Guest, GuestProcess, OutputStream } from "../spawner/index.ts";
import { KeepClock } from "./keep-clock.ts";
import { OutputLog } from "./output-log.ts";
import { OutputMemory } from "./output-memory.ts";
import { Process, type ProcessSpec } from "./process.ts";
import type { ProcessRecords, StoredProcess } from "./process-records.ts";
import type { StartRequest } from "./start-request.ts";

export interface ProcessTableParts {
  randomBytes(length: number): Uint8Array;
  nowMs(): number;
  /** Called for every piece of output: a sandbox with output is not idle. */
  onActivity(): void;
  memory?: OutputMemory;
  /** The records on the disk; absent: not recorded. */
  records?: ProcessRecords;
  sandboxId?(): string;
}

/** Longest time from the announcement of a snapshot until it is taken. */
const snapshotWindowMs = 30_000;
/** How long killing processes may delay a restore; the restore ends the guest afterwards anyway. */
const endAllMs = 5_000;

/** A service's program, as its launcher describes it to the table. */
export interface SupervisedProgram {
  kind: Extract<ProcessKind, "service" | "container">;
  name: string;
  cmd: readonly string[];
  dir: string | undefined;
  user: string | undefined;
}

export class ProcessTable {
  readonly #parts: ProcessTableParts;
  readonly #memory: OutputMemory;
  readonly #clock = new KeepClock();
  /** In the order of their start. */
  #all = new Set<Process>();
  /** Processes that count against the limit and are recorded: neither running execs nor services. */
  #kept = new Set<Process>();
  #recalled = false;
  readonly #byId = new Map<string, Process>();
  /** Execs answered between the announcement of a snapshot and the snapshot: a machine made of it may have lost the answer. */
  #answered = new Set<Process>();
  #snapshotAheadUntilMs = -Infinity;

  constructor(parts: ProcessTableParts) {
    this.#parts = parts;
    this.#memory = parts.memory ?? new OutputMemory();
  }

  /** Oldest first. */
  list(): Process[] {
    this.#recall();
    return [...this.#all];
  }

  /** Throws 404. */
  get(id: string): Process {
    this.#recall();
    const process = this.#byId.get(id);
    if (process === undefined || !this.#all.has(process)) {
      throw new ClocheError("not_found", `there is no process ${JSON.stringify(id.slice(0, 100))}`);
    }
    return process;
  }

  /**
   * Starts a process that outlives its request. Resolves when it runs, or has ended because the program is missing or not executable
   * (127, 126). Throws as exec does, and 429 if too many run.
   */
  async start(guest: Guest, { spec, command }: StartRequest): Promise<Process> {
    this.#recall();
    this.#makeRoom();
    const process = this.#create({
      ...spec,
      stdout: new OutputLog(spec.outputLimitBytes, "newest", this.#memory),
      stderr: new OutputLog(spec.outputLimitBytes, "newest", this.#memory),
    });
    this.#all.add(process);
    this.#kept.add(process);
    this.#save();
    const started = Promise.withResolvers<void>();
    process.run(guest, command, undefined, started.resolve).then(() => started.resolve(), started.reject);
    try {
      await started.promise;
    } catch (error) {
      this.forget(process);
      throw error;
    }
    return process;
  }

  /**
   * Runs an exec, which is listed until `settle`. `tap` also gets the output, and the exec waits for it. Without `tap` the first 16 MiB of
   * each stream are kept for the answer.
   */
  exec(
    guest: Guest,
    command: Command,
    tap?: Taker,
    onStarted?: () => void,
  ): { process: Process; end: Promise<CommandEnd> } {
    const log = (): OutputLog =>
      tap === undefined
        ? new OutputLog(limits.execOutputBytes, "first")
        : new OutputLog(limits.processOutputBytesDefault, "newest");
    const process = this.#create({
      kind: "exec",
      cmd: command.cmd,
      dir: command.dir,
      user: command.user,
      tag: "",
      tty: undefined,
      stdin: "none",
      mergeOutput: false,
      keepSeconds: limits.processKeepSecondsDefault,
      stdout: log(),
      stderr: log(),
    });
    this.#all.add(process);
    return { process, end: process.run(guest, command, tap, onStarted) };
  }

  /** Ends the listing of an exec, unless `cutOff`: then its client did not get the answer, and the exec is remembered. */
  settle(process: Process, cutOff: boolean): void {
    if (!this.#all.has(process)) return;
    const maybeLost = performance.now() < this.#snapshotAheadUntilMs;
    if (process.isAborted || !process.hasEnded || !(cutOff || maybeLost)) return this.forget(process);
    for (const log of [process.spec.stdout, process.spec.stderr]) {
      log.chargeTo(this.#memory);
      this.#memory.retire(log);
    }
    if (cutOff) return this.#keep(process);
    this.#all.delete(process);
    this.#answered.add(process);
    this.#clock.after(snapshotWindowMs, () => this.#forgetAnswered(process));
  }

  /** Lists a service's program. Pass its output to `take` of the answer, and the started process to `follow`. */
  supervise(program: SupervisedProgram): { take: Process["take"]; follow(running: GuestProcess): void } {
    const process = this.#create({
      kind: program.kind,
      cmd: program.cmd,
      dir: program.dir,
      user: program.user,
      tag: program.name,
      tty: undefined,
      stdin: "none",
      mergeOutput: false,
      keepSeconds: 0,
      stdout: new OutputLog(limits.processOutputBytesDefault, "newest", this.#memory),
      stderr: new OutputLog(limits.processOutputBytesDefault, "newest", this.#memory),
    });
    return {
      take: (stream: OutputStream, chunk: Buffer) => process.take(stream, chunk),
      follow: (running) => {
        this.#all.add(process);
        process.follow(running);
      },
    };
  }

  /** Ends the whole tree of a process and removes it from the list. Throws 409 for services, which the supervisor would start again. */
  async delete(process: Process): Promise<void> {
    const { kind, tag } = process.spec;
    if (kind === "service" || kind === "container") {
      throw new ClocheError(
        "failed_precondition",
        `the process is that of service "${tag}"; stop it with POST /v1/services/${tag}/stop`,
      );
    }
    await process.kill("delete");
    this.forget(process);
  }

  /** Before the disk is detached: ends running processes, within a few seconds, so that all their output is kept. */
  async endAll(why: "restore"): Promise<void> {
    this.#recall(); // the records of the next disk are of another past
    const running = this.list().filter(({ hasEnded }) => !hasEnded);
    for (const process of running) process.expectEnd(why);
    const late = Promise.withResolvers<void>();
    const timer = setTimeout(late.resolve, endAllMs);
    const own = running.filter(({ spec: { kind } }) => kind === "process" || kind === "exec");
    await Promise.race([Promise.all(own.map((process) => process.kill(why))), late.promise]);
    clearTimeout(timer);
  }

  /** When it resolves, the table does not use the disk until `diskAttached`. */
  async releaseDisk(): Promise<void> {
    await this.#parts.records?.hold();
  }

  diskAttached(): void {
    this.#parts.records?.release();
    if (this.#recalled) this.#save();
  }

  /** A snapshot follows soon: answers sent from now on may be lost in a machine that is made of it. */
  snapshotAhead(): void {
    this.#snapshotAheadUntilMs = performance.now() + snapshotWindowMs;
  }

  /** This machine was made of a snapshot: its former connections are gone, with the answers on them. */
  connectionsLost(): void {
    this.#snapshotAheadUntilMs = -Infinity;
    const answered = this.#answered;
    this.#answered = new Set();
    for (const process of answered) {
      this.#all.add(process);
      this.#keep(process);
    }
  }

  forget(process: Process): void {
    this.#all.delete(process);
    if (this.#kept.delete(process)) this.#save();
    this.#memory.forget(process.spec.stdout);
    this.#memory.forget(process.spec.stderr);
    if (process.knownId !== undefined) this.#byId.delete(process.knownId);
  }

  #forgetAnswered(process: Process): void {
    if (this.#answered.delete(process)) this.forget(process);
  }

  /** Remembers a process that has ended. */
  #keep(process: Process): void {
    this.#kept.add(process);
    this.#save();
    this.#clock.after(process.spec.keepSeconds * 1000, () => this.forget(process));
    while (this.#kept.size > limits.processesPerSandbox && this.#forgetOldest()) continue;
  }

  #makeRoom(): void {
    while (this.#kept.size >= limits.processesPerSandbox) {
      if (this.#forgetOldest()) continue;
      throw new ClocheError(
        "resource_exhausted",
        `${limits.processesPerSandbox} processes run; end one of them first`,
        { resource: "quota" },
      );
    }
  }

  #save(): void {
    this.#recall(); // before it is overwritten
    const { records, sandboxId } = this.#parts;
    records?.saveSoon(() => ({
      sandbox_id: sandboxId?.() ?? "",
      processes: [...this.#kept].map((process) => ({
        info: process.info(),
        keepSeconds: process.spec.keepSeconds,
      })),
    }));
  }

  /** Reads the records of an earlier agent of this sandbox, once. */
  #recall(): void {
    const id = this.#parts.sandboxId?.() ?? "";
    if (this.#recalled || id === "") return;
    this.#recalled = true;
    const stored = this.#parts.records?.load(id) ?? [];
    if (stored.length === 0) return;
    const known = stored.map((one) => this.#fromBefore(one));
    this.#all = new Set([...known, ...this.#all]);
    this.#kept = new Set([...known, ...this.#kept]);
    for (const process of known) this.#keep(process);
  }

  #fromBefore({ info, keepSeconds }: StoredProcess): Process {
    const { kind, cmd, dir, user, tag, tty, stdin, stdout_bytes, stderr_bytes } = info;
    const process = this.#create(
      {
        kind,
        cmd,
        dir,
        user,
        tag,
        tty: tty ?? undefined,
        stdin: stdin === "none" ? "none" : "open",
        mergeOutput: false,
        keepSeconds,
        stdout: OutputLog.lost(stdout_bytes),
        stderr: OutputLog.lost(stderr_bytes),
      },
      info,
    );
    this.#byId.set(info.process_id, process);
    return process;
  }

  #forgetOldest(): boolean {
    let oldest: Process | undefined;
    for (const process of this.#kept)
      if (process.hasEnded && process.endedAtMs < (oldest?.endedAtMs ?? Infinity)) oldest = process;
    if (oldest !== undefined) this.forget(oldest);
    return oldest !== undefined;
  }

  #create(spec: ProcessSpec, stored?: ProcessInfo): Process {
    const parts = {
      newId: (process: Process) => {
        const id = newProcessId((length) => this.#parts.randomBytes(length));
        this.#byId.set(id, process);
        return id;
      },
      nowMs: () => this.#parts.nowMs(),
      onActivity: () => this.#parts.onActivity(),
      onEnd: (process: Process) => this.#ended(process),
    };
    return new Process(spec, parts, stored);
  }

  #ended(process: Process): void {
    const { kind, stdout, stderr } = process.spec;
    if (kind === "exec") return; // settle decides, after the answer
    this.#memory.retire(stdout);
    this.#memory.retire(stderr);
    if (kind === "process") this.#keep(process);
    else this.forget(process);
  }
}
