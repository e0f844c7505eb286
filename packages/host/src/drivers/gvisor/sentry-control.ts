/**
 * Client of a sentry's control socket: one JSON request, then one JSON answer. Answers are bounded and checked, because users attack
 * the sentry.
 *
 *   open ──call──▶ waits for the answer ──it is whole──▶ open
 *                        └──socket closes, deadline, nonsense──▶ closed (calls fail)
 */
import { connect, type Socket } from "node:net";
import type { SentryProcess } from "./storm.ts";

/** A process takes some 200 bytes. */
const answerMax = 4 * 1024 * 1024;
const callDeadlineMs = 10_000;
const sigkill = 9;
const toProcess = 0;
const toProcessGroup = 3;

class SentryRefusal extends Error {
  override readonly name = "SentryRefusal";
}

export class SentryControl {
  readonly #socket: Socket;
  readonly #container: string;
  #pending: PromiseWithResolvers<unknown> | undefined;
  #text = "";

  constructor(path: string, container: string) {
    this.#container = container;
    this.#socket = connect(path);
    this.#socket.setEncoding("utf8");
    this.#socket.on("data", (text: string) => this.#take(text));
    this.#socket.on("error", (error) => this.#pending?.reject(error));
    this.#socket.on("close", () => this.#pending?.reject(new Error("the sentry closed its control socket")));
  }

  close(): void {
    this.#socket.destroy();
  }

  async processes(): Promise<SentryProcess[]> {
    const answer = await this.#call("containerManager.Processes", this.#container);
    return Array.isArray(answer) ? answer.filter(isProcess) : [];
  }

  /** In a paused machine the process dies when the machine is resumed. A process that is gone is no failure. */
  kill(pid: number): Promise<void> {
    return this.#kill(pid, toProcess);
  }

  killGroup(pgid: number): Promise<void> {
    return this.#kill(pgid, toProcessGroup);
  }

  /** Makes the sentry free unused memory of its Go heap. The kernel gets it back bit by bit. */
  async collect(): Promise<void> {
    await this.#call("Usage.Reduce", { wait: false, do_not_gc: false });
  }

  async #kill(pid: number, mode: number): Promise<void> {
    const signal = { CID: this.#container, Signo: sigkill, PID: pid, Mode: mode };
    await this.#call("containerManager.Signal", signal).catch((error: unknown) => {
      if (!(error instanceof SentryRefusal)) throw error;
    });
  }

  async #call(method: string, arg: unknown): Promise<unknown> {
    const pending = Promise.withResolvers<unknown>();
    if (this.#socket.destroyed) throw new Error("the sentry closed its control socket");
    this.#pending = pending;
    this.#text = "";
    const late = new Error(`${method}: the sentry does not answer`);
    const deadline = setTimeout(() => this.#socket.destroy(late), callDeadlineMs);
    try {
      this.#socket.write(JSON.stringify({ method, arg }));
      const answer = (await pending.promise) as { success?: unknown; err?: unknown; result?: unknown } | null;
      if (answer?.success !== true)
        throw new SentryRefusal(`${method}: the sentry answered ${String(answer?.err)}`);
      return answer.result;
    } finally {
      clearTimeout(deadline);
      this.#pending = undefined;
    }
  }

  #take(text: string): void {
    this.#text += text;
    if (this.#text.length > answerMax) this.#socket.destroy(new Error("the sentry's answer is too long"));
    // An answer is one object. If a part ends with a brace as well, JSON.parse fails and more follows.
    if (!text.endsWith("}")) return;
    try {
      this.#pending?.resolve(JSON.parse(this.#text));
    } catch {
      return;
    }
  }
}

function isProcess(value: unknown): value is SentryProcess {
  const { pid, ppid, pgid, cmd } = (value ?? {}) as Record<string, unknown>;
  return [pid, ppid, pgid].every(Number.isSafeInteger) && typeof cmd === "string";
}
