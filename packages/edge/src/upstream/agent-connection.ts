/**
 * One connection to an agent, or through a tunnel to a user's server. Carries one request at a time; AnswerParser reads
 * answers.
 *
 *   idle ──start──▶ busy ──answer and request both complete──▶ idle (onIdle: back to its pool)
 *                    └── anything else ──▶ closed
 *
 * AgentPool keeps connections; forward.ts, exec-abort.ts and upstreams.ts send requests on them. Nothing needs to
 * survive a crash.
 */
import type { Duplex } from "node:stream";
import type { PieceRate } from "@cloche/base";
import { readPieces } from "../edge-limits.ts";
import { readOn } from "./read-on.ts";
import {
  AnswerFormatError,
  AnswerParser,
  type AnswerHead,
  type AnswerListener,
  type HeadLimits,
} from "./answer-parser.ts";

/** Why there is no answer, or no complete one. */
export interface AnswerFailure {
  /**
   * http2: the far end speaks only HTTP/2. connect: no connection, so nothing was sent. lost: the connection ended.
   * format: the answer is not valid HTTP. closed: the edge closed it (new epoch, shutdown). exhausted: too many
   * connections.
   */
  kind: "connect" | "lost" | "format" | "closed" | "exhausted" | "http2";
  /** The connection had carried another request before. */
  reused: boolean;
  /** Some bytes of the answer had arrived. */
  answered: boolean;
  cause: unknown;
}

/** Events of a request. onDone, onUpgrade and onFailure are each the last event. */
export interface AnswerHandlers {
  onContinue(): void;
  onHead(head: AnswerHead): void;
  onBody(chunk: Buffer): void;
  onDone(): void;
  /** 101: the caller owns the socket from now on; `first`: bytes that have arrived already. */
  onUpgrade(head: AnswerHead, socket: Duplex, first: Buffer): void;
  /** More of the request can be written. */
  onDrain(): void;
  onFailure(failure: AnswerFailure): void;
}

/** The client's connection, for whose requests alone a connection may be kept. */
export type Owner = Pick<Duplex, "destroyed">;

export class AgentConnection implements AnswerListener {
  readonly socket: Duplex;
  readonly owner: Owner | undefined;
  reused = false;
  /** Monotonic time after which the idle connection must not be reused. */
  idleUntilMs = 0;
  keepAliveSeconds: number | undefined;
  connected: boolean;
  /** Lets the machine doze that was kept awake for the request; repeatable. */
  letDoze = (): void => undefined;
  readonly #limits: HeadLimits;
  readonly #work: PieceRate;
  readonly #onIdle: (connection: AgentConnection) => void;
  #handlers: AnswerHandlers | undefined;
  #parser: AnswerParser | undefined;
  #answered = false;
  #requestSent = false;
  #hasBody = false;
  #isLast = false;
  #keepAlive = false;
  #upgradeHead: AnswerHead | undefined;
  #paused = false;
  /** Bytes that wait for the next turn of the event loop. */
  #late: Buffer | undefined;

  /** `work`: the work that all connections to the sandbox may do in a turn. */
  constructor(
    socket: Duplex,
    options: {
      connected: boolean;
      limits: HeadLimits;
      work: PieceRate;
      onIdle: (connection: AgentConnection) => void;
      owner?: Owner | undefined;
    },
  ) {
    this.socket = socket;
    this.owner = options.owner;
    this.connected = options.connected;
    this.#limits = options.limits;
    this.#work = options.work;
    this.#onIdle = options.onIdle;
    readOn(socket);
    socket.on("data", this.#onData);
    socket.on("end", this.#onEnd);
    socket.on("error", this.#onError);
    socket.on("close", this.#onClose);
    socket.on("drain", this.#onDrain);
    // A tunnel's socket is paused after its upgrade.
    socket.resume();
  }

  get idle(): boolean {
    return this.#handlers === undefined;
  }

  /**
   * Begins a request. The caller then writes its head and body and calls requestSent(). `bodyless`: for HEAD, whose
   * answer has no body. `hasBody`: the request has a body. `isLast`: no other request is sent afterwards.
   */
  start(handlers: AnswerHandlers, bodyless: boolean, hasBody = false, isLast = false): void {
    this.#handlers = handlers;
    this.#parser = new AnswerParser(this, bodyless, this.#limits);
    this.#answered = false;
    this.#requestSent = false;
    this.#hasBody = hasBody;
    this.#isLast = isLast;
    this.#keepAlive = false;
    this.#upgradeHead = undefined;
  }

  /** False: wait for onDrain. */
  write(bytes: string | Uint8Array): boolean {
    return typeof bytes === "string" ? this.socket.write(bytes, "latin1") : this.socket.write(bytes);
  }

  /** Several pieces in one system call. False: wait for onDrain. */
  writeAll(pieces: readonly (string | Uint8Array)[]): boolean {
    let ready = true;
    this.socket.cork();
    for (const piece of pieces) ready = this.write(piece);
    this.socket.uncork();
    return ready;
  }

  requestSent(): void {
    this.#requestSent = true;
    this.#settle();
  }

  /** Stops and starts reading the answer, for a slow client. */
  pause(): void {
    this.#paused = true;
    this.socket.pause();
  }
  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    if (this.#late === undefined) this.socket.resume();
  }

  /** Ends the connection without telling the request's handlers. */
  abandon(): void {
    this.#handlers = undefined;
    this.socket.destroy();
  }

  /** Closes the connection; a request under way fails with `closed`. */
  close(cause: unknown): void {
    this.#fail("closed", cause);
    this.socket.destroy();
  }

  onContinue(): void {
    this.#handlers?.onContinue();
  }
  onHead(head: AnswerHead): void {
    this.#keepAlive = head.keepAlive && !this.#isLast && !this.#mayHaveLeftBody(head.status);
    this.keepAliveSeconds = head.keepAliveSeconds;
    if (head.status === 101) this.#upgradeHead = head;
    else this.#handlers?.onHead(head);
  }
  /**
   * True: the far end may have answered before it read the whole body, whose rest would then precede the next request.
   * An error status counts too, because a refusal seldom reads the body.
   */
  #mayHaveLeftBody(status: number): boolean {
    return !this.#requestSent || this.socket.writableLength > 0 || (this.#hasBody && status >= 400);
  }
  onBody(chunk: Buffer): void {
    this.#handlers?.onBody(chunk);
  }
  onDone(): void {
    this.#settle();
  }

  readonly #onData = (chunk: Buffer): void => {
    if (this.#handlers === undefined || this.#work.mayBegin(this.#goOn)) return this.#take(chunk);
    this.#late = chunk;
    this.socket.pause();
  };

  readonly #goOn = (): void => {
    this.#takeLate();
    const isOurs = this.socket.listeners("data").includes(this.#onData);
    if (isOurs && !this.#paused && !this.socket.destroyed) this.socket.resume();
  };

  #takeLate(): void {
    const chunk = this.#late;
    this.#late = undefined;
    if (chunk !== undefined) this.#take(chunk);
  }

  #take(chunk: Buffer): void {
    const parser = this.#parser;
    if (this.#handlers === undefined || parser === undefined) {
      // Bytes on an idle connection belong to no request.
      this.socket.destroy();
      return;
    }
    // A server of HTTP/2 first sends a SETTINGS frame (RFC 9113, 3.4), whose length begins with 0; no HTTP/1.1 answer
    // does.
    if (!this.#answered && chunk[0] === 0) {
      this.#fail("http2", new Error("the server speaks HTTP/2 alone"));
      this.socket.destroy();
      return;
    }
    this.#answered = true;
    const { pieces } = parser;
    let rest: Buffer | undefined;
    try {
      rest = parser.execute(chunk);
      this.#work.spend(readPieces + parser.pieces - pieces);
    } catch (error) {
      this.#fail(error instanceof AnswerFormatError ? "format" : "lost", error);
      this.socket.destroy();
      return;
    }
    if (this.#upgradeHead !== undefined) this.#upgrade(this.#upgradeHead, rest);
    else if (rest !== undefined) this.socket.destroy();
  }

  #upgrade(head: AnswerHead, rest: Buffer | undefined): void {
    const handlers = this.#handlers;
    this.#handlers = undefined;
    this.socket.off("data", this.#onData);
    this.socket.off("end", this.#onEnd);
    this.socket.off("drain", this.#onDrain);
    this.socket.pause();
    handlers?.onUpgrade(head, this.socket, rest ?? Buffer.alloc(0));
  }

  readonly #onEnd = (): void => {
    if (this.#parser?.finish() !== true)
      this.#fail("lost", new Error("the connection ended before its answer"));
    this.socket.destroy();
  };
  readonly #onError = (error: Error): void => this.#lost(error);
  readonly #onClose = (): void => this.#lost(new Error("connection closed"));
  readonly #onDrain = (): void => this.#handlers?.onDrain();

  #lost(cause: Error): void {
    this.#takeLate();
    this.#fail(this.connected ? "lost" : "connect", cause);
  }

  #fail(kind: AnswerFailure["kind"], cause: unknown): void {
    const handlers = this.#handlers;
    this.#handlers = undefined;
    handlers?.onFailure({ kind, reused: this.reused, answered: this.#answered, cause });
  }

  /** The exchange is over when the answer is complete; the connection is reusable if all of the request was sent. */
  #settle(): void {
    if (this.#parser?.state !== "done" || this.#upgradeHead !== undefined) return;
    const handlers = this.#handlers;
    if (handlers === undefined) return;
    this.#handlers = undefined;
    const reusable = this.#keepAlive && this.#requestSent && !this.socket.destroyed;
    if (reusable) this.reused = true;
    handlers.onDone();
    if (reusable) this.resume();
    if (reusable) this.#onIdle(this);
    else this.socket.destroy();
  }
}
