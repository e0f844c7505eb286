import type { ServerContext } from "@modelcontextprotocol/server";
import { mcpLimits } from "./limits.ts";

/** Tells the client that a long call goes on, where it asked to be told; clients that reset their time limit at it wait on. */
export class Progress {
  readonly #context: ServerContext;
  readonly #beganMs = Date.now();
  readonly #timer: NodeJS.Timeout | undefined;
  #toldMs = 0;
  #last = 0;
  #message: string;

  /** `message`: what goes on, until `tell` says more. */
  constructor(context: ServerContext, message: string) {
    this.#context = context;
    this.#message = message;
    if (context.mcpReq._meta?.progressToken === undefined) return;
    this.#timer = setInterval(() => this.#send(), mcpLimits.progressMaxMs);
  }

  tell(message: string): void {
    this.#message = message;
    if (this.#timer !== undefined && Date.now() - this.#toldMs >= mcpLimits.progressMinMs) this.#send();
  }

  /** No notification comes after it: the answer must be the last that is sent of a call. */
  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }

  #send(): void {
    const progressToken = this.#context.mcpReq._meta?.progressToken;
    if (progressToken === undefined || this.#context.mcpReq.signal.aborted) return;
    this.#toldMs = Date.now();
    // Seconds since the call began; it must grow at each.
    this.#last = Math.max(this.#last + 0.001, (this.#toldMs - this.#beganMs) / 1_000);
    const message = this.#message.slice(-mcpLimits.progressMessageCharacters);
    const params = { progressToken, progress: Number(this.#last.toFixed(3)), message };
    // Nobody is left to be told; the call itself hears of it by its signal.
    this.#context.mcpReq.notify({ method: "notifications/progress", params }).catch(() => undefined);
  }
}
