// What checkpoints and forks cost where they are kept: what they share with what was there is not there twice.
import { execFileSync } from "node:child_process";
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const { home } = inject("service");
const client = sharedClient();
const DATA_MIB = 100;
const GIB_MIB = 1_024;

const fill = (sandbox: TestSandbox): Promise<string> =>
  client.shell(sandbox, `head -c ${DATA_MIB}M /dev/urandom > /root/data; sync`);
const storedMib = (): number =>
  Number(execFileSync("du", ["-sm", join(home, "blobs")], { encoding: "utf8" }).split("\t")[0]);
const poolUsedMib = (): number => {
  const pool = join(home, "pool");
  execFileSync("sync", ["-f", pool]);
  return Number(execFileSync("df", ["--output=used", "-m", pool], { encoding: "utf8" }).split("\n")[1]);
};

/** Takes a checkpoint and waits until it is in storage. */
async function store(sandbox: TestSandbox, name: string): Promise<void> {
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: { name } });
  const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
  const waited = await client.call(sandbox, "POST", "/v1/checkpoint/wait", {
    json: { checkpoint_id, timeout_secs: 120 },
  });
  expect(waited.status, waited.body.toString()).toBe(200);
}

test("a checkpoint of an 8 GiB disk stores what is used of it, and the next one what is new", async () => {
  const sandbox = await client.create({ disk_mb: 8 * GIB_MIB });
  await store(sandbox, "empty");
  // Those of other tests may still be on their way.
  let before = storedMib();
  await eventually(
    async () => {
      const last = before;
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      before = storedMib();
      return before === last;
    },
    (still) => still,
  );
  expect(before).toBeLessThan(4 * GIB_MIB);
  await fill(sandbox);
  await store(sandbox, "filled");
  const grown = storedMib() - before;
  expect(grown).toBeGreaterThanOrEqual(DATA_MIB);
  expect(grown).toBeLessThan(1.5 * DATA_MIB);
  await client.session.discard(sandbox.id);
});

test("five forks share the disk and the memory of their source", async () => {
  const source = await client.create();
  const hold =
    "x = open('/root/data', 'rb').read(); import time; print('held', flush=True); time.sleep(1000)";
  await fill(source);
  await client.shell(
    source,
    `(setsid python3 -c "${hold}" > /root/said 2>&1 &); until grep -q held /root/said; do sleep 0.1; done`,
  );
  const before = poolUsedMib();
  const forks = await Promise.all(
    Array.from({ length: 5 }, () =>
      client.gateway<{ sandbox: { id: string } }>("ForkSandbox", { source_sandbox_id: source.id }),
    ),
  );
  for (const { sandbox } of forks) {
    client.session.adopt(sandbox.id);
    const state = async (): Promise<string> =>
      (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id })).sandbox.state;
    expect(await eventually(state, (one) => one !== "SANDBOX_STATE_CREATING")).toBe("SANDBOX_STATE_RUNNING");
  }
  // Copies would be five times the data on disk, and as much again in five saved memories; one saved memory is shared by all.
  expect(poolUsedMib() - before).toBeLessThan(4 * DATA_MIB);
  for (const { sandbox } of forks) await client.session.discard(sandbox.id);
  await client.session.discard(source.id);
});

test("a memory image forgets processes that have ended and restores that are over", async () => {
  const sandbox = await client.create();
  const before = await suspendedStateKib(sandbox);
  // Each is seen by a look at /proc while it lives.
  await client.shell(
    sandbox,
    "for i in $(seq 150); do sleep 100 & cat /proc/$!/stat /proc/$!/status > /dev/null; kill $!; wait $!; done 2> /dev/null; true",
  );
  // Before a restore, which gives the guest a new procfs. Programs that ran, and connections, are remembered; unbounded it is 2,500.
  expect((await suspendedStateKib(sandbox)) - before).toBeLessThan(600);
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
  for (let times = 0; times < 12; times += 1) {
    const restored = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } });
    expect(restored.status, restored.body.toString()).toBe(200);
    // Its guest's processes are looked at, as for every snapshot and every look whether it is idle.
    await client.shell(sandbox, "cat /proc/*/stat > /dev/null; true");
  }
  const after = await suspendedStateKib(sandbox);
  // Some 115 of the last minute's connections; with what the restores leave remembered, 545.
  expect(after - before).toBeLessThan(250);
  await client.session.discard(sandbox.id);
});

/** How large the state of its kernel is when it is suspended, beside its pages of memory; it runs again afterwards. */
async function suspendedStateKib({ id }: TestSandbox): Promise<number> {
  await client.gateway("SuspendSandbox", { id });
  await comesTo(id, "SANDBOX_STATE_SUSPENDED");
  const folder = join(home, "pool/machines", id);
  const image = readdirSync(folder, { recursive: true, encoding: "utf8" }).find((name) =>
    name.endsWith("checkpoint.img"),
  );
  const { size } = statSync(join(folder, image ?? "checkpoint.img"));
  await client.gateway("ResumeSandbox", { id });
  await comesTo(id, "SANDBOX_STATE_RUNNING");
  return size / 1_024;
}

async function comesTo(id: string, wanted: string): Promise<void> {
  const stateOf = async (): Promise<string> =>
    (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;
  expect(await eventually(stateOf, (state) => state === wanted)).toBe(wanted);
}
