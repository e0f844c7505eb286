/**
 * One guest: the native process, its two sockets, its programs and its file requests.
 *
 *     waiting ──enter──▶ starting ──both HELLOs──▶ open ──close() or the end of pid 1──▶ closed
 *                            └──FATAL, exit──▶ failed (start and enter reject)
 *
 * Owned by NativeSpawner. No guest survives the agent: init ends when its socket closes.
 */
import { type ChildProcess, spawn as spawnChild } from "node:child_process";
import type { Duplex } from "node:stream";
import { ClocheError } from "@cloche/protocol";
import { SpawnError } from "./errors.ts";
import type { GuestPath } from "./file-types.ts";
import { FilesClient } from "./files-client.ts";
import { OwnFiles } from "./own-files.ts";
import { NativeProcess, outputWindowBytes } from "./process.ts";
import type {
  Guest,
  GuestOptions,
  GuestProcess,
  KilledForMemory,
  SpawnRequest,
  SpawnStage,
} from "./types.ts";
import {
  type Frame,
  FrameReader,
  frameMaxBytes,
  frameTypes,
  FrameWriter,
  PayloadReader,
  spawnFlags,
  wireVersion,
} from "./wire.ts";

/** After this time a guest that does not start or end is given up. */
const startTimeoutMs = 20_000;
const closeTimeoutMs = 20_000;
const defaultMaxProcesses = 4_096;
const stages: readonly SpawnStage[] = ["request", "request", "user", "cwd", "exec", "fork", "pty"];
const e2big = 7;

/** A process that the memory guard killed. */
export interface MemoryDeath extends KilledForMemory {
  /** `NativeGuest.pid` of the guest it was in. */
  readonly guestPid: number;
  /** 0: no running exec. */
  readonly execId: number;
}

export class NativeGuest implements Guest {
  readonly files: FilesClient;
  readonly closed: Promise<void>;
  /** Why it ended by itself; undefined if it was closed. */
  cause: Error | undefined;
  readonly #child: ChildProcess;
  readonly #init: Duplex;
  readonly #fileServer: Duplex;
  readonly #own: OwnFiles;
  readonly #processes = new Map<number, NativeProcess>();
  readonly #opened = Promise.withResolvers<void>();
  #lastId = 0;
  #hellos = 0;
  #ended = false;
  #renewed: PromiseWithResolvers<void> | undefined;
  #outOfMemoryHandler: ((death: MemoryDeath) => void) | undefined;

  /** Starts a guest and resolves when it can run programs. Throws `unavailable` with the failure as its cause. */
  static async start(binary: string, options: GuestOptions): Promise<NativeGuest> {
    const guest = new NativeGuest(binary, optionArgs(options));
    await guest.#started();
    return guest;
  }

  /** Starts the process ahead; it becomes a guest by `enter`. In gVisor this is most of the time of a start. */
  static waiting(binary: string): NativeGuest {
    return new NativeGuest(binary, []);
  }

  /** Makes a waiting process a guest; resolves and throws as `start`. */
  async enter(options: GuestOptions): Promise<void> {
    this.#write(this.#init, new FrameWriter().strings(optionArgs(options)).finish(frameTypes.guest, 0, 0));
    await this.#started();
  }

  async #started(): Promise<void> {
    const timer = setTimeout(
      () => this.#opened.reject(new Error("the guest did not start in time")),
      startTimeoutMs,
    );
    try {
      await this.#opened.promise;
    } catch (error) {
      await this.close();
      throw new ClocheError("unavailable", "the sandbox's processes could not be started", { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }

  private constructor(binary: string, args: readonly string[]) {
    this.#child = spawnChild(binary, ["guest", ...args], {
      env: {},
      cwd: "/",
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    });
    this.#init = this.#child.stdio[3] as Duplex;
    this.#fileServer = this.#child.stdio[4] as Duplex;
    this.#own = new OwnFiles(() => this.pid);
    this.files = new FilesClient((frame, rest) => this.#write(this.#fileServer, frame, rest), this.#own);
    this.#opened.promise.catch(() => undefined);
    const closed = Promise.withResolvers<void>();
    this.closed = closed.promise;
    this.#child.once("error", (error) => this.#fail(error));
    this.#child.once("exit", (code, signal) => {
      this.#fail(new Error(`the guest's file server ended (${signal ?? `code ${code}`})`));
      // pid 1 ends when this socket closes; `close` below waits for that.
      this.#init.destroy();
      this.#fileServer.destroy();
    });
    this.#child.once("close", () => void this.#own.letGo(restarted()).then(closed.resolve));
    this.#listen(this.#init, (frame) => this.#onInitFrame(frame));
    this.#listen(this.#fileServer, (frame) => {
      if (frame.type === frameTypes.hello) this.#onHello(frame);
      else if (frame.type === frameTypes.outOfMemory) this.#onOutOfMemory(frame);
      else this.files.onFrame(frame);
    });
  }

  async spawn(request: SpawnRequest): Promise<GuestProcess> {
    const process = this.#launch(request, 0, request.argv);
    await process.started;
    return process;
  }

  launch(request: SpawnRequest, onStarted?: () => void): GuestProcess {
    if (onStarted === undefined) return this.#launch(request, spawnFlags.quiet, request.argv);
    const process = this.#launch(request, 0, request.argv);
    process.started.then(onStarted, () => undefined);
    return process;
  }

  archive(
    operation: "create" | "extract",
    path: GuestPath,
    onOutput: NonNullable<SpawnRequest["onOutput"]>,
    user?: string,
  ): GuestProcess {
    const argv = ["cloche-guest", operation === "create" ? "tar-create" : "tar-extract", path];
    const stdin = operation === "extract" ? "pipe" : "none";
    const request = { env: {}, cwd: "/", stdin, onOutput, ...(user !== undefined && { user }) } as const;
    return this.#launch(request, spawnFlags.quiet | spawnFlags.self, argv);
  }

  async renew(): Promise<void> {
    const renewed = Promise.withResolvers<void>();
    this.#renewed = renewed;
    if (this.#ended) throw lost();
    this.#write(this.#init, new FrameWriter().finish(frameTypes.renew, 0, 0));
    await renewed.promise;
  }

  /** How many containers are open or about to be: meanwhile this guest's memory guard does not sleep. */
  countContainers(count: number): void {
    if (this.#ended) return;
    this.#write(this.#init, new FrameWriter().u32(count).finish(frameTypes.containers, 0, 0));
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Receives the deaths that this guest's memory guard reports, in any guest. */
  set onOutOfMemory(handler: (death: MemoryDeath) => void) {
    this.#outOfMemoryHandler = handler;
  }

  /** Notes that a process of that exec was killed for memory. Ignored if the exec is over. */
  noteOutOfMemory(execId: number): void {
    const process = this.#processes.get(execId);
    if (process) process.outOfMemory = true;
  }

  async settle(withinMs: number): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, withinMs);
    await Promise.race([Promise.allSettled([...this.#processes.values()].map(({ exited }) => exited)), late]);
    clearTimeout(timer);
  }

  async close(): Promise<void> {
    this.#init.destroy();
    this.#fileServer.destroy();
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), closeTimeoutMs);
    await this.closed;
    clearTimeout(timer);
  }

  #launch(request: Omit<SpawnRequest, "argv">, flags: number, argv: readonly GuestPath[]): NativeProcess {
    do this.#lastId = (this.#lastId + 1) >>> 0;
    while (this.#lastId === 0 || this.#processes.has(this.#lastId));
    const id = this.#lastId;
    const process = new NativeProcess(id, this.pid, request, (frame) => this.#write(this.#init, frame));
    if (this.#ended) {
      process.onFailed(lost());
      return process;
    }
    const writer = new FrameWriter()
      .u16(request.pty?.cols ?? 0)
      .u16(request.pty?.rows ?? 0)
      .u32(outputWindowBytes)
      .string(request.user ?? "")
      .string(request.cwd ?? "")
      .strings(argv)
      .strings(Object.entries(request.env).map(([name, value]) => `${name}=${value}`));
    if (writer.sizeBytes > frameMaxBytes) {
      process.onFailed(new SpawnError("exec", e2big, "arguments and environment are too large"));
      return process;
    }
    let bits = flags;
    if (request.stdin === "pipe") bits |= spawnFlags.stdin;
    if (request.pty !== undefined) bits |= spawnFlags.pty;
    if (request.tree === "hold") bits |= spawnFlags.hold;
    if (request.mergeOutput === true) bits |= spawnFlags.merge;
    this.#processes.set(id, process);
    this.#write(this.#init, writer.finish(frameTypes.spawn, bits, id));
    return process;
  }

  #write(socket: Duplex, frame: Buffer, rest?: readonly Buffer[]): void {
    // Never waits here: windows limit the data on its way to init, and callers limit file requests.
    if (this.#ended) return;
    if (rest === undefined) {
      socket.write(frame);
      return;
    }
    // cork sends frame and rest together without a copy. No other write can come between within one turn of the event loop.
    socket.cork();
    socket.write(frame);
    for (const piece of rest) socket.write(piece);
    socket.uncork();
  }

  #listen(socket: Duplex, onFrame: (frame: Frame) => void): void {
    const reader = new FrameReader();
    socket.on("data", (chunk: Buffer) => {
      try {
        reader.push(chunk, onFrame);
      } catch (error) {
        // The sandbox's root may have tampered with the process; this harms only its own sandbox.
        this.#fail(error instanceof Error ? error : new Error(String(error)));
        this.#child.kill("SIGKILL");
      }
    });
    socket.on("error", () => undefined); // the process's `close` event handles this
  }

  #onHello(frame: Frame): void {
    const version = frame.payload.readUInt32LE(0);
    if (version !== wireVersion) throw new Error(`the guest speaks version ${version}, not ${wireVersion}`);
    this.#hellos += 1;
    if (this.#hellos === 2) this.#opened.resolve();
  }

  #onOutOfMemory({ id, payload }: Frame): void {
    const fields = new PayloadReader(payload);
    const guestPid = fields.u32();
    this.#outOfMemoryHandler?.({
      guestPid,
      execId: id,
      memoryBytes: fields.u64(),
      name: fields.bytes().toString(),
    });
  }

  #onInitFrame(frame: Frame): void {
    if (frame.type === frameTypes.hello) return this.#onHello(frame);
    if (frame.type === frameTypes.fatal) {
      const payload = new PayloadReader(frame.payload);
      const errno = payload.u32();
      return this.#fail(new Error(`${payload.bytes().toString()} failed with errno ${errno}`));
    }
    if (frame.type === frameTypes.renewed) return this.#onRenewed(frame);
    const process = this.#processes.get(frame.id);
    if (!process) return;
    if (frame.type === frameTypes.stdout) process.onData("stdout", frame.payload);
    else if (frame.type === frameTypes.stderr) process.onData("stderr", frame.payload);
    else if (frame.type === frameTypes.stdinCredit) process.onStdinCredit(frame.payload.readUInt32LE(0));
    else if (frame.type === frameTypes.started) process.onStarted(frame.payload.readUInt32LE(0));
    else if (frame.type === frameTypes.exit) {
      const payload = new PayloadReader(frame.payload);
      const [pid, code, signal] = [payload.u32(), payload.u32(), payload.u32()];
      process.onExit(pid, { code, signal: signal === 0 ? null : signal });
    } else if (frame.type === frameTypes.ended) process.onEnded();
    else if (frame.type === frameTypes.error) process.onFailed(readError(frame.payload));
    if (process.done) this.#processes.delete(frame.id);
    return undefined;
  }

  #onRenewed(frame: Frame): void {
    const payload = new PayloadReader(frame.payload);
    const errno = payload.u32();
    const step = payload.bytes().toString();
    if (errno === 0) this.#renewed?.resolve();
    else this.#renewed?.reject(new Error(`${step} failed with errno ${errno}`));
  }

  #fail(error: Error): void {
    this.#opened.reject(error);
    this.#renewed?.reject(error);
    if (this.#ended) return;
    this.#ended = true;
    this.cause = error;
    for (const process of this.#processes.values()) process.onFailed(lost());
    this.#processes.clear();
    this.files.onLost(restarted(error));
  }
}

function optionArgs(options: GuestOptions): string[] {
  const args = ["--root", options.root];
  for (const path of options.tmpfs ?? ["/run"]) args.push("--tmpfs", path);
  for (const mount of options.mounts ?? [])
    args.push(mount.readOnly === true ? "--bind-ro" : "--bind", `${mount.source}:${mount.target}`);
  args.push("--max-processes", String(options.maxProcesses ?? defaultMaxProcesses));
  if (options.memoryGuard === true) args.push("--memory-guard", "on");
  if (options.userNamespace === true) args.push("--user-namespace", "on");
  if (options.container === true) args.push("--container", "on");
  if (options.hostname !== undefined) args.push("--hostname", options.hostname);
  return args;
}

function restarted(cause?: Error): ClocheError {
  return new ClocheError("unavailable", "the sandbox's processes were restarted", { cause });
}

function lost(): SpawnError {
  return new SpawnError("lost", 0, "the sandbox's processes were restarted");
}

function readError(data: Buffer): SpawnError {
  const payload = new PayloadReader(data);
  const stage = stages[payload.u32()] ?? "request";
  const errno = payload.u32();
  return new SpawnError(stage, errno, payload.bytes().toString());
}
