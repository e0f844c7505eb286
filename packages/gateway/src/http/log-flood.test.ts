import { strangersLines } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { expect, it } from "vitest";
import { openFixture } from "../testing/gateway-fixture.ts";

it("writes a bounded number of lines for calls without a good key, and each line of those with one", async () => {
  const { log, lines } = recordedLog();
  const f = await openFixture({ log });
  try {
    const { linesPerSecond, burstSeconds } = strangersLines;
    const burst = linesPerSecond * burstSeconds;
    const beganMs = performance.now();
    for (let flood = 0; flood < burst * 3; flood += 1) {
      const { status } = await f.call("ListSandboxes", {}, { secret: "cloche_nobody" });
      expect(status).toBe(401);
    }
    const calls = () => lines.filter(({ message }) => message === "gateway call");
    const due = burst + ((performance.now() - beganMs) / 1_000) * linesPerSecond;
    expect(calls().length).toBeGreaterThanOrEqual(burst);
    expect(calls().length).toBeLessThanOrEqual(due + 1);
    const before = calls().length;
    for (let own = 0; own < burst + 20; own += 1) await f.call("ListSandboxes");
    await expect.poll(() => calls().length).toBe(before + burst + 20);
  } finally {
    await f.close();
  }
}, 60_000);
