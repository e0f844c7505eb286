// Clients that write into a sandbox's store while somebody kills it, and what they know afterwards: no answered write may be
// lost, no batch applied by half.
import { expect } from "vitest";
import type { Choices } from "./seed.ts";

/** A data plane call; undefined where the connection died before the answer. */
export type Call = (
  method: string,
  path: string,
  body?: unknown,
) => Promise<{ status: number; json: Record<string, unknown> } | undefined>;

const writers = 6;
const keysPerWriter = 5;
const batchKeys = 20;

/** What is known of a key: the last counter that was answered, and the last that was sent. */
interface Written {
  answered: number;
  sent: number;
}

export class StoreWriters {
  readonly #random: Choices;
  readonly #keys = new Map<string, Written>();
  readonly #batches: { answered: boolean }[] = [];
  answered = 0;

  constructor(random: Choices) {
    this.#random = random;
  }

  /** Writes through `call` until a connection dies. Rejects when the store refuses. */
  async run(call: Call): Promise<void> {
    await Promise.all(Array.from({ length: writers }, (_, writer) => this.#write(call, writer)));
  }

  /** Throws where the store is not what it must be. */
  async verify(call: Call): Promise<void> {
    for (const [key, written] of this.#keys) {
      const answer = await call("GET", `/v1/store/${key}`);
      expect([200, 404], key).toContain(answer?.status);
      const counter = answer?.status === 200 ? (answer.json["value"] as { counter: number }).counter : 0;
      expect(counter, key).toBeGreaterThanOrEqual(written.answered);
      expect(counter, key).toBeLessThanOrEqual(written.sent);
      // A write that was not answered may have been made or not; from here on it is what it is.
      written.answered = counter;
    }
    const counts = await countBatches(call);
    for (const [number, { answered }] of this.#batches.entries()) {
      const count = counts.get(number) ?? 0;
      expect([0, batchKeys], `batch ${number}`).toContain(count);
      if (answered) expect(count, `batch ${number}`).toBe(batchKeys);
    }
  }

  async #write(call: Call, writer: number): Promise<void> {
    for (;;) {
      const died = this.#random.below(10) < 3 ? await this.#batch(call) : await this.#set(call, writer);
      if (died) return;
      this.answered += 1;
    }
  }

  async #set(call: Call, writer: number): Promise<boolean> {
    const key = `writer-${writer}/${this.#random.below(keysPerWriter)}`;
    const written = this.#keys.get(key) ?? { answered: 0, sent: 0 };
    this.#keys.set(key, written);
    written.sent += 1;
    const counter = written.sent;
    const padding = "y".repeat(this.#random.below(500));
    const answer = await call("PUT", `/v1/store/${key}`, { value: { counter, padding } });
    if (answer === undefined) return true;
    expect(answer.status).toBe(200);
    written.answered = counter;
    return false;
  }

  async #batch(call: Call): Promise<boolean> {
    const batch = { answered: false };
    const number = this.#batches.push(batch) - 1;
    const operations = Array.from({ length: batchKeys }, (_, index) => ({
      op: "set",
      key: `batch/${number}/${index}`,
      value: "x".repeat(this.#random.below(3_000)),
    }));
    const answer = await call("POST", "/v1/store/batch", { operations });
    if (answer === undefined) return true;
    expect(answer.status).toBe(200);
    batch.answered = true;
    return false;
  }
}

async function countBatches(call: Call): Promise<Map<number, number>> {
  const counts = new Map<number, number>();
  for (let cursor = "", more = true; more; ) {
    const page = await call("GET", `/v1/store?prefix=batch/&limit=10000&cursor=${cursor}`);
    for (const key of (page?.json["keys"] as string[] | undefined) ?? []) {
      const number = Number(key.split("/")[1]);
      counts.set(number, (counts.get(number) ?? 0) + 1);
    }
    cursor = String(page?.json["cursor"] ?? "");
    more = cursor !== "";
  }
  return counts;
}

/** Lets the writers run until `answers` more writes were answered, then kills; resolves when the writers have noticed. */
export async function killAfter(
  writers: StoreWriters,
  call: Call,
  answers: number,
  kill: () => void | Promise<void>,
): Promise<void> {
  // After a number of answers, not after a time: a slow machine is killed no earlier.
  const until = writers.answered + answers;
  const running = writers.run(call).then(
    () => undefined,
    (error: unknown) => error,
  );
  let failure: unknown;
  let over = false;
  void running.then((error) => {
    failure = error;
    over = true;
  });
  while (writers.answered < until && !over) await new Promise((resolve) => setTimeout(resolve, 1));
  await kill();
  await running;
  if (failure !== undefined) throw failure;
}
