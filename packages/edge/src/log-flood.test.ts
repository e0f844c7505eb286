import { expect, test } from "vitest";
import { strangersLines } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { sandboxA } from "./testing/fake-gateway.ts";
import { Rig } from "./testing/rig.ts";

const { linesPerSecond, burstSeconds } = strangersLines;
const burst = linesPerSecond * burstSeconds;
const requests = burst * 4;

test("what strangers ask for makes a bounded number of short lines, and the owner's lines stay", async () => {
  const { log, lines } = recordedLog();
  await using rig = await Rig.startChannel({ log });
  const beganMs = performance.now();
  const path = `/v1/files?path=/${"x".repeat(100)}`;
  const longPath = `/v1/${"y".repeat(4_000)}`;
  for (let flood = 0; flood < requests; flood += 1) {
    const headers = { authorization: "Bearer nobody" };
    const { status } = await rig.ask({ path: flood % 2 === 0 ? path : longPath, headers });
    expect(status).toBe(401);
  }
  const refused = lines.filter(({ message }) => message === "refused");
  const due = burst + ((performance.now() - beganMs) / 1_000) * linesPerSecond;
  expect(refused.length).toBeGreaterThanOrEqual(burst);
  expect(refused.length).toBeLessThanOrEqual(due + 1);
  expect(Math.max(...refused.map((line) => JSON.stringify(line).length))).toBeLessThan(1_000);
  const headers = await rig.bearer();
  for (let own = 0; own < burst + 20; own += 1) await rig.ask({ path: "/v1/processes", headers });
  const answered = lines.filter(({ message }) => message === "answered");
  expect(answered.length).toBe(burst + 20);
  expect(answered[0]?.fields).toMatchObject({ sandbox_id: sandboxA, status: 200 });
}, 60_000);
