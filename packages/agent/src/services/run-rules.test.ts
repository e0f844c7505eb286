import { expect, it } from "vitest";
import type { HealthCheck } from "../oci-images/health-check.ts";
import { checkOf, type ImageRules, runRules } from "./run-rules.ts";

const defaults = { startTimeoutMs: 60_000, stopTimeoutMs: 10_000 };
const check: HealthCheck = {
  argv: ["/check"],
  intervalMs: 30_000,
  timeoutMs: 30_000,
  startPeriodMs: 0,
  startIntervalMs: 5_000,
  retries: 3,
};
const image: ImageRules = { stopSignal: "SIGINT", stopTimeoutSeconds: 30, healthCheck: null };
const cmd = "";

it("asks the whole tree to end unless somebody named a signal, which goes to the program", () => {
  expect(runRules({ cmd }, undefined, defaults)).toEqual({
    startTimeoutMs: 60_000,
    stop: { signal: 15, scope: "tree" },
    stopTimeoutMs: 10_000,
  });
  expect(runRules({ cmd }, image, defaults)).toMatchObject({
    stop: { signal: 2, scope: "program" },
    stopTimeoutMs: 30_000,
  });
  expect(runRules({ cmd, stop_signal: "SIGQUIT", stop_timeout_secs: 0 }, image, defaults)).toMatchObject({
    stop: { signal: 3, scope: "program" },
    stopTimeoutMs: 0,
  });
  expect(runRules({ cmd }, { ...image, stopSignal: "SIGNOT" }, defaults).stop.signal).toBe(15);
  expect(runRules({ cmd }, { ...image, stopTimeoutSeconds: 1e9 }, defaults).stopTimeoutMs).toBe(600_000);
});

it("gives an image's check as long as the image itself does", () => {
  const slow = { ...image, healthCheck: { ...check, startPeriodMs: 120_000 } };
  expect(runRules({ cmd }, { ...image, healthCheck: check }, defaults).startTimeoutMs).toBe(90_000);
  expect(runRules({ cmd }, slow, defaults).startTimeoutMs).toBe(210_000);
  expect(runRules({ cmd, start_timeout_secs: 5 }, slow, defaults).startTimeoutMs).toBe(5_000);
  expect(runRules({ cmd, health_port: 80 }, slow, defaults).startTimeoutMs).toBe(60_000);
});

it("takes the definition's word before the image's check", () => {
  const checked = { ...image, healthCheck: check };
  expect(checkOf({ cmd }, checked)).toBe(check);
  expect(checkOf({ cmd, health_port: 80 }, checked)).toBeNull();
  expect(checkOf({ cmd, healthcheck: false }, checked)).toBeNull();
  expect(checkOf({ cmd }, undefined)).toBeNull();
});
