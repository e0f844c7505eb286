// Two services on one database and one checkpoint storage: the second is refused before it touches anything, and takes over on purpose only.
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, inventory } from "../fixtures/inventory.ts";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";
import { startService, TestService } from "../fixtures/service.ts";

let cluster: PostgresCluster;
let shared: { CLOCHE_DATABASE_URL: string; CLOCHE_BLOB_URL: string };
let first: TestService;
let client: Client;
beforeAll(async () => {
  cluster = await startPostgres();
  const store = mkdtempSync("/var/tmp/cloche-test-store-");
  shared = { CLOCHE_DATABASE_URL: await cluster.newDatabase(), CLOCHE_BLOB_URL: store };
  first = await startService({ env: { ...shared, CLOCHE_WARM_POOL: "0" } });
  const { gateway_url: gatewayUrl, api_key: apiKey } = first.status;
  client = new Client({ ...first.target(), gatewayUrl, apiKey });
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await first?.destroy()).toEqual([]);
  await cluster?.stop();
  if (shared !== undefined) rmSync(shared.CLOCHE_BLOB_URL, { recursive: true, force: true });
});

const packs = (): string[] => readdirSync(join(shared.CLOCHE_BLOB_URL, "packs")).sort();

test.concurrent("the second is refused, says whose they are, and changes nothing", async ({
  onTestFailed,
}) => {
  onTestFailed(() => console.error(first.logTail()));
  const sandbox = await client.create();
  await client.shell(sandbox, "head -c 3000000 /dev/urandom > /root/data; sync");
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
  await client.call(sandbox, "POST", "/v1/checkpoint/wait", { json: { checkpoint_id } });
  const before = packs();

  const second = await TestService.create({ ...shared, CLOCHE_WARM_POOL: "0" });
  const { code, stderr } = await second.command(["up", "--detach"], { deadlineMs: 120_000 });
  expect(code).toBe(1);
  expect(stderr).toMatch(/the database postgres:\/\/localhost\/\S+ belongs to another installation/);
  expect(stderr).toContain(first.home);
  expect(stderr).toContain("npx cloche take-over");
  expect(stderr).not.toMatch(/\bat .+:\d+:\d+/);
  expect(inventory(second.home)).toEqual(emptyInventory);

  // The storage alone is refused too.
  const third = await TestService.create({ CLOCHE_BLOB_URL: shared.CLOCHE_BLOB_URL, CLOCHE_WARM_POOL: "0" });
  const refused = await third.command(["up", "--detach"], { deadlineMs: 120_000 });
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringMatching(/the checkpoint storage \S+ belongs to another installation/),
  ]);
  expect(await third.destroy()).toEqual([]);

  const live = await second.command(["take-over"]);
  expect([live.code, live.stderr]).toEqual([1, expect.stringMatching(/is in use by .*--force/)]);

  expect(packs()).toEqual(before);
  expect((await client.exec(sandbox, ["test", "-s", "/root/data"])).ok).toBe(true);
  const { sandbox: still } = await client.gateway<{ sandbox: { state: string } }>("GetSandbox", {
    id: sandbox.id,
  });
  expect(still.state).toBe("SANDBOX_STATE_RUNNING");

  // Its home is gone: a new one takes over, and finds the checkpoint.
  await client.session.wire.gateway({
    method: "POST",
    path: "/cloche.public.v1.SandboxService/DeleteSandbox",
    headers: { "content-type": "application/json", authorization: `Bearer ${first.status.api_key}` },
    body: Buffer.from(JSON.stringify({ id: sandbox.id })),
  });
  expect((await first.stop()).code).toBe(0);
  const took = await second.command(["take-over"]);
  expect([took.code, took.stderr]).toEqual([0, expect.stringContaining("is this installation's now")]);
  try {
    await second.start();
    const other = new Client(second.target());
    const copy = await other.create({ checkpoint_id });
    expect((await other.exec(copy, ["stat", "-c", "%s", "/root/data"])).stdout).toBe("3000000\n");
    await other.close();
    const late = await first.command(["up", "--detach"], { deadlineMs: 120_000 });
    expect([late.code, late.stderr]).toEqual([1, expect.stringContaining(second.home)]);
  } finally {
    expect(await second.destroy()).toEqual([]);
  }
});

// It waits a minute for the next look.
test.concurrent("a service whose database is taken from it ends, and leaves its machines as they are", async () => {
  const service = await startService({ env: { CLOCHE_WARM_POOL: "0" } });
  try {
    const { DatabaseSync } = await import("node:sqlite");
    const database = new DatabaseSync(join(service.home, "cloche.db"), { timeout: 5_000 });
    database.exec("update owner set session = 'run-00000000000000000000'");
    database.close();
    await eventually(
      () => service.readStatus(),
      ({ ready }) => !ready,
      90_000,
    );
    expect(service.logTail(20)).toContain("another has taken its place");
  } finally {
    expect(await service.destroy()).toEqual([]);
  }
});
