import type { ServerContext } from "@modelcontextprotocol/server";
import { mcpLimits } from "./limits.ts";

/** Notifies the client, if it asked for progress, that a long call goes on. Clients may reset their time limit at each notification. */
export class Progress {
  readonly #context: ServerContext;
  readonly #beganMs = Date.now();
  readonly #timer: NodeJS.Timeout | undefined;
  #reportedMs = 0;
  #last = 0;
  #message: string;

  /** `message`: the first message, until `tell` sets another. */
  constructor(context: ServerContext, message: string) {
    this.#context = context;
    this.#message = message;
    if (context.mcpReq._meta?.progressToken === undefined) return;
    this.#timer = setInterval(() => this.#send(), mcpLimits.progressMaxMs);
  }

  report(message: string): void {
    this.#message = message;
    if (this.#timer !== undefined && Date.now() - this.#reportedMs >= mcpLimits.progressMinMs) this.#send();
  }

  /** Stops all notifications: the answer must be the last message of a call. */
  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }

  #send(): void {
    const progressToken = this.#context.mcpReq._meta?.progressToken;
    if (progressToken === undefined || this.#context.mcpReq.signal.aborted) return;
    this.#reportedMs = Date.now();
    // Seconds since the call began; it must grow at each.
    this.#last = Math.max(this.#last + 0.001, (this.#reportedMs - this.#beganMs) / 1_000);
    const message = this.#message.slice(-mcpLimits.progressMessageCharacters);
    const params = { progressToken, progress: Number(this.#last.toFixed(3)), message };
    // The client is gone; the signal of the call reports this.
    this.#context.mcpReq.notify({ method: "notifications/progress", params }).catch(() => undefined);
  }
}
