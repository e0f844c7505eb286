import { treeOf } from "./process-tree.ts";
import { frameTypes, FrameWriter, signalScopes, stdinWindowBytes } from "./wire.ts";
import type {
  GuestProcess,
  OutputStream,
  ProcessExit,
  SignalScope,
  SpawnRequest,
  TerminalSize,
} from "./types.ts";

/** Bytes of output per stream that a program may write before its taker has taken them. */
export const outputWindowBytes = 262_144;

/**
 * The agent's end of one exec. Owned by a guest, which passes it the frames with its id.
 *
 *     asked ──started──▶ running ──exited──▶ (held, with `tree: "hold"`) ──ended──▶ done
 *       └──failed──▶ done
 */
export class NativeProcess implements GuestProcess {
  pid = 0;
  readonly started: Promise<number>;
  readonly exited: Promise<ProcessExit>;
  readonly ended: Promise<void>;
  /** No more frames of this id come. */
  done = false;
  outOfMemory = false;

  readonly #id: number;
  readonly #guestPid: number;
  readonly #send: (frame: Buffer) => void;
  readonly #onOutput: SpawnRequest["onOutput"];
  readonly #hold: boolean;
  #resolveStarted!: (pid: number) => void;
  #resolveExited!: (exit: ProcessExit) => void;
  #resolveEnded!: () => void;
  #rejectAll!: (error: Error) => void;

  #taking = 0;
  #whenTaken: (() => void) | undefined;
  #owed = { stdout: 0, stderr: 0 };
  #stdinCredit = stdinWindowBytes;
  #stdinQueue: { data: Buffer; resolve: () => void }[] = [];
  #stdinEnding = false;

  /** `guestPid`: pid of the guest it runs in. */
  constructor(
    id: number,
    guestPid: number,
    request: Omit<SpawnRequest, "argv">,
    send: (frame: Buffer) => void,
  ) {
    this.#id = id;
    this.#guestPid = guestPid;
    this.#send = send;
    this.#onOutput = request.onOutput;
    this.#hold = request.tree === "hold";
    const started = Promise.withResolvers<number>();
    const exited = Promise.withResolvers<ProcessExit>();
    const ended = Promise.withResolvers<void>();
    this.started = started.promise;
    this.exited = exited.promise;
    this.ended = ended.promise;
    this.#resolveStarted = started.resolve;
    this.#resolveExited = exited.resolve;
    this.#resolveEnded = ended.resolve;
    this.#rejectAll = (error) => {
      started.reject(error);
      exited.reject(error);
      ended.reject(error);
    };
    // Callers await only some of these promises; a rejection of the others must not end the agent.
    for (const promise of [this.started, this.exited, this.ended]) promise.catch(() => {});
  }

  write(data: Buffer): Promise<void> {
    if (this.done || this.#stdinEnding || data.length === 0) return Promise.resolve();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#stdinQueue.push({ data, resolve });
    this.#pumpStdin();
    return promise;
  }

  end(): void {
    if (this.#stdinEnding) return;
    this.#stdinEnding = true;
    this.#pumpStdin();
  }

  signal(signal: number, scope: SignalScope): void {
    if (this.done) return;
    this.#send(new FrameWriter().u32(signal).finish(frameTypes.signal, signalScopes[scope], this.#id));
  }

  async findPid(withinMs: number): Promise<number> {
    if (this.done || this.pid !== 0) return this.pid;
    this.#send(new FrameWriter().finish(frameTypes.pid, 0, this.#id));
    const late = Promise.withResolvers<number>();
    const timer = setTimeout(() => late.resolve(0), withinMs);
    const pid = await Promise.race([this.started.catch(() => 0), late.promise]);
    clearTimeout(timer);
    return pid;
  }

  kill(): Promise<void> {
    if (!this.done) this.#send(new FrameWriter().finish(frameTypes.kill, 0, this.#id));
    return this.ended.catch(() => {});
  }

  tree(): number[] {
    return this.done ? [] : treeOf(this.#guestPid, this.#id);
  }

  resize(size: TerminalSize): void {
    if (this.done) return;
    this.#send(new FrameWriter().u16(size.cols).u16(size.rows).finish(frameTypes.resize, 0, this.#id));
  }

  /** STARTED. */
  onStarted(pid: number): void {
    this.pid = pid;
    this.#resolveStarted(pid);
  }

  /** STDOUT and STDERR. The taker may keep the chunk. */
  onData(stream: OutputStream, chunk: Buffer): void {
    const taken = this.#onOutput?.(stream, chunk);
    if (taken === undefined) {
      this.#giveCredit(stream, chunk.length);
      return;
    }
    this.#taking += 1;
    const settle = () => {
      this.#taking -= 1;
      this.#giveCredit(stream, chunk.length);
      if (this.#taking === 0) this.#whenTaken?.();
    };
    taken.then(settle, settle); // after a failure of the taker the program goes on
  }

  /** STDIN_CREDIT. */
  onStdinCredit(bytes: number): void {
    this.#stdinCredit += bytes;
    this.#pumpStdin();
  }

  /** EXIT. */
  onExit(pid: number, exit: ProcessExit): void {
    this.pid = pid;
    this.#resolveStarted(pid);
    if (!this.#hold) this.done = true;
    this.#dropStdin();
    this.#afterTaken(() => {
      this.#resolveExited(exit);
      if (!this.#hold) this.#resolveEnded();
    });
  }

  /** ENDED. */
  onEnded(): void {
    this.done = true;
    this.#afterTaken(() => this.#resolveEnded());
  }

  /** ERROR, or the loss of the guest. */
  onFailed(error: Error): void {
    this.done = true;
    this.#dropStdin();
    this.#rejectAll(error);
  }

  #afterTaken(then: () => void): void {
    if (this.#taking === 0) {
      then();
      return;
    }
    const before = this.#whenTaken;
    this.#whenTaken = () => {
      this.#whenTaken = undefined;
      before?.();
      then();
    };
  }

  #giveCredit(stream: OutputStream, bytes: number): void {
    this.#owed[stream] += bytes;
    // Credit is returned half a window at a time: less would cost a frame for every chunk, and the program still has the other half.
    if (this.done || this.#owed[stream] < outputWindowBytes / 2) return;
    const frame = new FrameWriter()
      .u32(this.#owed[stream])
      .finish(frameTypes.credit, stream === "stdout" ? 1 : 2, this.#id);
    this.#owed[stream] = 0;
    this.#send(frame);
  }

  #pumpStdin(): void {
    while (!this.done && this.#stdinCredit > 0) {
      const first = this.#stdinQueue[0];
      if (!first) break;
      const part = first.data.subarray(0, Math.min(this.#stdinCredit, 65_536));
      this.#stdinCredit -= part.length;
      this.#send(new FrameWriter().raw(part).finish(frameTypes.stdin, 0, this.#id));
      if (part.length < first.data.length) {
        first.data = first.data.subarray(part.length);
        continue;
      }
      this.#stdinQueue.shift();
      first.resolve();
    }
    if (this.#stdinEnding && this.#stdinQueue.length === 0 && !this.done)
      this.#send(new FrameWriter().finish(frameTypes.stdinEnd, 0, this.#id));
  }

  #dropStdin(): void {
    for (const { resolve } of this.#stdinQueue) resolve();
    this.#stdinQueue = [];
  }
}
