// What checkpoints and forks cost where they are kept: what they share with what was there is not there twice.
import { execFileSync } from "node:child_process";
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
