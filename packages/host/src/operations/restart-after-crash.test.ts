import { expect, it } from "vitest";
import { RestartBudget, restartsMax } from "./restart-after-crash.ts";

it("gives each machine its restarts, and new ones as the old grow old", () => {
  let nowMs = 1_000_000;
  const budget = new RestartBudget(() => nowMs);
  for (let round = 0; round < restartsMax; round += 1) {
    expect(budget.take("a")).toBe(true);
    nowMs += 60_000;
  }
  expect(budget.take("a")).toBe(false);
  expect(budget.take("b")).toBe(true);
  nowMs += 600_000 - restartsMax * 60_000; // the first of them is ten minutes old
  expect(budget.take("a")).toBe(true);
  expect(budget.take("a")).toBe(false);
});
