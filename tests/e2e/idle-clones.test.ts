// gVisor of 2024 restored epoll instances broken (its issue 13920): what waited on one then spun on a core for as long as it
// lived, which nothing but the CPU it used told.
import { expect, inject, test } from "vitest";
import type { Cgroup } from "../../packages/host/src/drivers/cgroup.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { cgroupOf } from "../fixtures/unit-cgroup.ts";

const client = sharedClient();
const { home, runtime } = inject("service");
const forks = 4;

/** Share of a core used in the second that follows. */
async function share(cgroup: Cgroup): Promise<number> {
  const [beganMs, before] = [performance.now(), await cgroup.figures()];
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  const after = await cgroup.figures();
  return (after.cpuMs - before.cpuMs) / (performance.now() - beganMs);
}

test.runIf(runtime === "gvisor")("clones of a machine with open connections come to rest", async () => {
  const source = await client.create({ name: "restless" });
  const talking = new AbortController();
  const talk = Promise.all(
    Array.from({ length: 3 }, async () => {
      while (!talking.signal.aborted) await client.exec(source, ["true"]).catch(() => undefined);
    }),
  );
  try {
    const clones = await Promise.all(
      Array.from({ length: forks }, () =>
        client.gateway<{ sandbox: { id: string } }>("ForkSandbox", { source_sandbox_id: source.id }),
      ),
    );
    for (const { sandbox } of clones) {
      client.session.adopt(sandbox.id);
      await eventually(
        () => client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id }),
        (seen) => seen.sandbox.state === "SANDBOX_STATE_RUNNING",
        60_000,
      );
      const cgroup = await cgroupOf(home, sandbox.id);
      const least = await eventually(
        () => share(cgroup),
        (seen) => seen < 0.3,
        60_000,
      );
      expect(least).toBeLessThan(0.3);
    }
  } finally {
    talking.abort();
    await talk;
  }
});
