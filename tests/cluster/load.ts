// Requests without end on some sandboxes, each counted. A client of a cluster stands behind a load balancer: where nothing listens on an
// address, the request goes to the next one. Every other failure counts.
import { setTimeout as sleep } from "node:timers/promises";
import type { TestSandbox } from "../conformance/session.ts";
import type { Client } from "../fixtures/client.ts";

export interface LoadReport {
  asked: number;
  /** What failed, and when: seconds after the begin. */
  failed: string[];
  /** Milliseconds. */
  p99Ms: number;
  longestMs: number;
}

const PAUSE_MS = 50;

export class Load {
  readonly #clients: readonly Client[];
  readonly #startedMs = performance.now();
  readonly #tookMs: number[] = [];
  readonly #failed: string[] = [];
  readonly #workers: Promise<void>[];
  #isOver = false;

  /** `clients`: one an edge. A worker for each sandbox and edge. */
  constructor(clients: readonly Client[], boxes: readonly TestSandbox[]) {
    this.#clients = clients;
    this.#workers = boxes.flatMap((box) => clients.map((_, first) => this.#work(box, first)));
  }

  get asked(): number {
    return this.#tookMs.length;
  }

  async end(): Promise<LoadReport> {
    this.#isOver = true;
    await Promise.all(this.#workers);
    const sorted = this.#tookMs.toSorted((a, b) => a - b);
    return {
      asked: sorted.length,
      failed: this.#failed,
      p99Ms: Math.round(sorted[Math.ceil(sorted.length * 0.99) - 1] ?? 0),
      longestMs: Math.round(sorted.at(-1) ?? 0),
    };
  }

  async #work(box: TestSandbox, first: number): Promise<void> {
    while (!this.#isOver) {
      const beganMs = performance.now();
      const why = await this.#ask(box, first).catch(String);
      const endedMs = performance.now();
      this.#tookMs.push(endedMs - beganMs);
      if (why !== undefined) {
        const at = ((beganMs - this.#startedMs) / 1_000).toFixed(1);
        this.#failed.push(`${at} s, ${box.id}, after ${Math.round(endedMs - beganMs)} ms: ${why}`);
      }
      await sleep(PAUSE_MS);
    }
  }

  /** Undefined: answered as it should be. */
  async #ask(box: TestSandbox, first: number): Promise<string | undefined> {
    const order = [...this.#clients.slice(first), ...this.#clients.slice(0, first)];
    for (const [index, client] of order.entries()) {
      try {
        const options = { json: { cmd: ["echo", "here"] }, deadlineMs: 20_000 };
        const { status, body } = await client.call(box, "POST", "/v1/exec", options);
        if (status === 200 && body.includes("here\\n")) return undefined;
        return `status ${status}: ${body.toString().slice(0, 300)}`;
      } catch (error) {
        const isRefused = (error as NodeJS.ErrnoException).code === "ECONNREFUSED";
        if (!isRefused || index === order.length - 1) throw error;
      }
    }
    return "no edge was asked";
  }
}
