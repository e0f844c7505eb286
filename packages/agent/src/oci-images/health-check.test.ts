import { expect, it } from "vitest";
import { readHealthCheck } from "./health-check.ts";

const second = 1_000_000_000;

it.each([
  [
    ["CMD", "/check", "a b"],
    ["/check", "a b"],
  ],
  [
    ["CMD-SHELL", "curl -f x || exit 1"],
    ["/bin/sh", "-c", "curl -f x || exit 1"],
  ],
])("runs %j", (Test, argv) => {
  expect(readHealthCheck({ Test }, [])).toEqual({
    argv,
    intervalMs: 30_000,
    timeoutMs: 30_000,
    startPeriodMs: 0,
    startIntervalMs: 5_000,
    retries: 3,
  });
});

it.each(
  [undefined, null, "CMD", {}, { Test: [] }, { Test: ["NONE"] }, { Test: ["CMD"] }].concat([
    { Test: ["CMD-SHELL", ""] },
    { Test: ["CMD", 1] },
    { Test: ["CMD", "a\0b"] },
  ] as never),
)("has no check in %j", (value) => {
  expect(readHealthCheck(value, [])).toBeUndefined();
});

it("reads times in nanoseconds, and the image's own shell", () => {
  const given = {
    Test: ["CMD-SHELL", "true"],
    Interval: 2 * second,
    Timeout: second / 2,
    StartPeriod: 90 * second,
    StartInterval: 1,
    Retries: 7,
  };
  expect(readHealthCheck(given, ["/bin/bash", "-lc"])).toEqual({
    argv: ["/bin/bash", "-lc", "true"],
    intervalMs: 2_000,
    timeoutMs: 500,
    startPeriodMs: 90_000,
    startIntervalMs: 1_000,
    retries: 7,
  });
  const nonsense = { Test: ["CMD", "x"], Interval: -1, Timeout: "x", Retries: 0.5, StartPeriod: 1e300 };
  expect(readHealthCheck(nonsense, [])).toMatchObject({
    intervalMs: 30_000,
    timeoutMs: 30_000,
    retries: 3,
    startPeriodMs: 86_400_000,
  });
});
