import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { boundedLog } from "./bounded-log.ts";
import { recordedLog } from "./testing/recorded-log.ts";

const bounds = { linesPerSecond: 2, burstSeconds: 5, fieldCharacters: 20, countedMs: 1_000 };

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it("writes no more lines of a kind than its rate, says how many are left out, and hides no other kind", () => {
  const { log: to, lines } = recordedLog();
  const log = boundedLog(to, bounds);
  for (let flood = 0; flood < 1_000; flood += 1) log.info({}, "refused");
  log.child({ part: "x" }).warn({}, "another kind");
  expect(lines.map(({ message }) => message)).toEqual([...Array(10).fill("refused"), "another kind"]);
  vi.advanceTimersByTime(1_000);
  const count = {
    level: "info",
    fields: { left_out: 990 },
    message: "refused: more lines like this were left out",
  };
  expect(lines.at(-1)).toEqual(count);
  // Two more are due by now, and the next count begins at zero.
  for (let flood = 0; flood < 5; flood += 1) log.info({}, "refused");
  vi.advanceTimersByTime(1_000);
  expect(lines.slice(12).map(({ fields }) => fields)).toEqual([{}, {}, { left_out: 3 }]);
  vi.advanceTimersByTime(60_000);
  expect(lines.length).toBe(15);
});

it("writes short lines: long texts are cut, and of an error its stack is left out, unless it is ours", () => {
  const { log: to, lines } = recordedLog();
  const log = boundedLog(to, bounds);
  log.warn({ path: "/".repeat(16_384), status: 401, err: new Error("x".repeat(16_384)) }, "refused");
  const short = {
    status: 401,
    err: { type: "Error", message: `${"x".repeat(20)}…` },
    path: `${"/".repeat(20)}…`,
  };
  expect(lines[0]?.fields).toEqual(short);
  const err = new Error("a fault of the service");
  log.error({ err }, "failed");
  expect(lines[1]?.fields).toEqual({ err });
});
