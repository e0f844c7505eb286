// Machines kept ready: how many follows what was asked for at once, and none of them counts for less once it is given out.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { cpuWeightOf } from "../fixtures/unit-cgroup.ts";

const { runtime } = inject("service");
const onGvisor = test.runIf(runtime === "gvisor");
const least = 1;
const most = 3;

let service: TestService;
let client: Client;
beforeAll(async () => {
  if (runtime !== "gvisor") return;
  const env = { CLOCHE_WARM_POOL: String(least), CLOCHE_WARM_POOL_MAX: String(most) };
  service = await startService({ env });
  client = new Client(service.target());
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect((await service?.destroy()) ?? []).toEqual([]);
});

async function warm(): Promise<{ ready: number; wanted: number }> {
  const text = await (await fetch(`http://127.0.0.1:${service.env["CLOCHE_METRICS_PORT"]}/metrics`)).text();
  const read = (name: string): number =>
    Number(new RegExp(`^${name}\\{[^}]*kind="warm"[^}]*\\} (\\d+)`, "m").exec(text)?.[1]);
  return { ready: read("cloche_ready_machines"), wanted: read("cloche_ready_machines_wanted") };
}
const full = (count: number) =>
  eventually(warm, ({ ready, wanted }) => ready === count && wanted === count, 120_000);
const settled = () => eventually(warm, ({ ready, wanted }) => ready === wanted, 120_000);

/** Creates so many at once; each answers a command. */
async function burst(count: number): Promise<TestSandbox[]> {
  return Promise.all(
    Array.from({ length: count }, async (_, i) => {
      const sandbox = await client.create({});
      expect((await client.exec(sandbox, ["echo", String(i)])).stdout).toBe(`${i}\n`);
      return sandbox;
    }),
  );
}

onGvisor("as many are kept ready as were asked for at once, up to the most, and no burst fails", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await full(least)).toEqual({ ready: least, wanted: least });
  const first = await burst(most + 2);
  expect(await full(most)).toEqual({ ready: most, wanted: most });
  const second = await burst(most);
  for (const { id } of [...first, ...second]) await client.gateway("DeleteSandbox", { id });
  expect(await full(most)).toEqual({ ready: most, wanted: most });
});

onGvisor("what is made ahead gives way to all others while it is made, and to none afterwards", async () => {
  await settled();
  const sandbox = await client.create({});
  const { ready } = await settled();
  const units = join("/run", `cloche-${service.tag}`, "gvisor", "units");
  const shares: unknown[] = [];
  const weights = new Set<string>();
  for (const name of await readdir(units)) {
    const bundle = JSON.parse(await readFile(join(units, name, "bundle/config.json"), "utf8")) as {
      linux: { resources: { cpu: { shares?: number } } };
    };
    shares.push(bundle.linux.resources.cpu.shares);
    weights.add(await cpuWeightOf(service.home, name));
  }
  // The given one was made ahead too, beside those that are kept.
  expect(shares.filter((one) => one === 32).length).toBeGreaterThan(ready);
  expect([...weights]).toHaveLength(1);
  expect(["1024\n", "100\n"]).toContain([...weights][0]);
  await client.gateway("DeleteSandbox", { id: sandbox.id });
});
