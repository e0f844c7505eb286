import { afterEach, expect, it } from "vitest";
import { LongTurns } from "./long-turns.ts";

let turns: LongTurns | undefined;
afterEach(() => turns?.end());

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
function work(ms: number): void {
  const endMs = performance.now() + ms;
  while (performance.now() < endMs);
}

it("calls back after a turn that took long, and neither while nothing happens nor when it has ended", async () => {
  let long = 0;
  turns = new LongTurns(100, () => (long += 1));
  turns.begin();
  turns.begin();
  await pause(300);
  expect(long).toBe(0);
  work(150);
  await pause(0);
  expect(long).toBe(1);
  turns.end();
  work(150);
  await pause(0);
  expect(long).toBe(1);
});
