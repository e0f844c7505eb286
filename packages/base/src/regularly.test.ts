import { describe, expect, it } from "vitest";
import { regularly } from "./regularly.ts";
import { FakeClock } from "./testing/fake-clock.ts";

async function begun(first: "now" | "later", task: () => unknown) {
  const clock = new FakeClock();
  const stop = new AbortController();
  const failures: unknown[] = [];
  const failed = (error: unknown): unknown => failures.push(error);
  const running = regularly({ everyMs: 10, first, clock, signal: stop.signal, failed }, task);
  return { clock, failures, running, stop: () => stop.abort(new Error("over")) };
}

describe("regularly", () => {
  it.each([
    ["now", 3],
    ["later", 2],
  ] as const)("looks %s and every 10 ms from then on", async (first, looks) => {
    let count = 0;
    const { clock, running, stop } = await begun(first, () => (count += 1));
    await clock.advance(10);
    await clock.advance(10);
    expect(count).toBe(looks);
    stop();
    await running;
    expect(count).toBe(looks);
  });

  it("goes on after a look that failed, and tells of it", async () => {
    let count = 0;
    const { clock, failures, running, stop } = await begun("now", () => {
      count += 1;
      if (count === 1) throw new Error("once");
    });
    await clock.advance(10);
    stop();
    await running;
    expect([count, failures]).toEqual([2, [new Error("once")]]);
  });

  it("waits for the look that goes on when it ends, and is silent about its failure", async () => {
    const task = Promise.withResolvers<void>();
    const { failures, running, stop } = await begun("now", () => task.promise);
    let isOver = false;
    void running.then(() => (isOver = true));
    stop();
    await Promise.resolve();
    expect(isOver).toBe(false);
    task.reject(new Error("stopped"));
    await running;
    expect(failures).toEqual([]);
  });
});
