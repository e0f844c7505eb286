// A sandbox that spins has its share of the processors and not more: read where the host counts, not by the clock of who waits.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, inject, test } from "vitest";
import { sharedClient } from "../fixtures/client.ts";

const { home, runtime } = inject("service");
const client = sharedClient();
const groups = "/sys/fs/cgroup";
const cpus = 0.25;

/** The sandbox's cgroup, by controller; on the unified hierarchy all are one. */
function groupOf(id: string, controller: string): string {
  const isUnified = readdirSync(groups).includes("cgroup.controllers");
  const tree = isUnified ? groups : join(groups, controller);
  const instances = readdirSync(tree).filter((name) => name.startsWith("cloche-"));
  for (const instance of instances)
    for (const name of readdirSync(join(tree, instance)))
      if (name === id || unitOf(id).includes(name)) return join(tree, instance, name);
  throw new Error(`${id} has no cgroup below ${tree}`);
}

/** gVisor: the machine's directory names its unit. */
function unitOf(id: string): string[] {
  if (runtime !== "gvisor") return [];
  const note = readFileSync(join(home, "pool", "machines", id, "gvisor.json"), "utf8");
  return [(JSON.parse(note) as { unit: string }).unit];
}

function figures(id: string): { usageMs: number; throttled: number; quota: number } {
  const stat = readFileSync(join(groupOf(id, "cpu"), "cpu.stat"), "utf8");
  const of = (name: string): number => Number(new RegExp(`^${name} (\\d+)$`, "m").exec(stat)?.[1] ?? "0");
  const isUnified = readdirSync(groups).includes("cgroup.controllers");
  const usageMs = isUnified
    ? of("usage_usec") / 1_000
    : Number(readFileSync(join(groupOf(id, "cpuacct"), "cpuacct.usage"), "utf8")) / 1_000_000;
  const at = (name: string): string => readFileSync(join(groupOf(id, "cpu"), name), "utf8").trim();
  const [allowed = 0, period = 1] = isUnified
    ? at("cpu.max").split(" ").map(Number)
    : [Number(at("cpu.cfs_quota_us")), Number(at("cpu.cfs_period_us"))];
  return { usageMs, throttled: of("nr_throttled"), quota: allowed / period };
}

test("spinning processes are held to the sandbox's share, and a neighbour has its own", async () => {
  const [greedy, neighbour] = await Promise.all([client.create({ cpus }), client.create()]);
  const began = figures(greedy.id);
  const beganMs = performance.now();
  expect(began.quota).toBe(cpus);
  const spin = client.exec(greedy, [
    "sh",
    "-c",
    "for i in 1 2 3 4 5 6 7 8; do timeout 5 sh -c 'while :; do :; done' & done; wait",
  ]);
  expect(
    (await client.exec(neighbour, ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i"]))
      .stdout,
  ).toBe("20000\n");
  expect((await client.exec(greedy, ["echo", "alive"])).stdout).toBe("alive\n");
  await spin;
  const ended = figures(greedy.id);
  const elapsedMs = performance.now() - beganMs;
  expect(ended.throttled).toBeGreaterThan(began.throttled);
  // A period at either end may have been paid for and not been used, or the reverse.
  expect(ended.usageMs - began.usageMs).toBeLessThanOrEqual(cpus * elapsedMs + 2 * 100 * cpus + 50);
  expect(figures(neighbour.id).quota).toBeGreaterThan(cpus);
});
