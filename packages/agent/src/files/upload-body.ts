import type { IncomingMessage } from "node:http";
import { ClocheError, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";

/** Bytes that may wait here while earlier ones are written. */
const aheadBytes = 1_048_576;

/**
 * Streams the body of a request of any size, no faster than the consumer takes it. Each piece is everything that arrived since the last
 * one. Throws 408 if no byte comes for 30 s, and `canceled` if the client goes away before the end of the body.
 */
export async function* bodyPieces(exchange: Exchange): AsyncGenerator<readonly Buffer[], void, undefined> {
  const body = new UploadBody(exchange.openBody());
  try {
    for (;;) {
      const pieces = await body.next();
      if (pieces === undefined) return;
      yield pieces;
    }
  } finally {
    body.leave();
  }
}

class UploadBody {
  readonly #request: IncomingMessage;
  #come: Buffer[] = [];
  #comeBytes = 0;
  #over: ClocheError | "whole" | undefined;
  #wake: (() => void) | undefined;

  constructor(request: IncomingMessage) {
    this.#request = request;
    if (request.destroyed) this.#over = gone();
    request
      .on("data", this.#onData)
      .on("end", this.#onEnd)
      .on("error", this.#onGone)
      .on("close", this.#onGone);
  }

  /** The next bytes; undefined: the body is complete. */
  async next(): Promise<readonly Buffer[] | undefined> {
    if (this.#comeBytes === 0 && this.#over === undefined) await this.#more();
    const pieces = this.#come;
    this.#come = [];
    this.#comeBytes = 0;
    if (this.#request.isPaused()) this.#request.resume();
    if (pieces.length > 0) return pieces;
    if (this.#over instanceof ClocheError) throw this.#over;
    return undefined;
  }

  /** Stops listening to the request; other code may read the rest of the body. */
  leave(): void {
    this.#request.off("data", this.#onData).off("end", this.#onEnd);
    this.#request.off("close", this.#onGone);
    // The error listener stays, so that a later error does not end the process.
  }

  async #more(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    const stall = setTimeout(() => this.#finish(stalled()), limits.headersTimeoutMs);
    await promise;
    clearTimeout(stall);
  }

  readonly #onData = (chunk: Buffer): void => {
    this.#come.push(chunk);
    this.#comeBytes += chunk.length;
    if (this.#comeBytes >= aheadBytes) this.#request.pause();
    this.#wake?.();
  };
  readonly #onEnd = (): void => this.#finish(this.#request.complete ? "whole" : gone());
  readonly #onGone = (error?: Error): void => this.#finish(gone(error));

  #finish(how: ClocheError | "whole"): void {
    this.#over ??= how;
    this.#wake?.();
  }
}

const stalled = (): ClocheError =>
  new ClocheError("deadline_exceeded", "the request body stalled; send it without long pauses");
const gone = (cause?: unknown): ClocheError =>
  new ClocheError("canceled", "the client went away before its body was complete", { cause });
