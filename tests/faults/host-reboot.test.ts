// The host goes down and comes back, simulated: every process killed, every mount, namespace and rule gone, /run emptied.
// Suspended sandboxes and checkpoints are intact; those that ran start cold from their disk with the services that ran.
import { afterAll, beforeAll, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory, sweep } from "../fixtures/inventory.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { type Count, countIn, goesOn, startCounter } from "./counter.ts";

let service: TestService;
let client: Client;
let running: TestSandbox;
let suspended: TestSandbox;
let counts: { running: Count; suspended: Count };
let checkpoint: string;

const stateOf = async (id: string): Promise<string> =>
  (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;
const reaches = (id: string, state: string): Promise<string> =>
  eventually(
    () => stateOf(id),
    (seen) => seen === state,
    60_000,
  );

beforeAll(async () => {
  service = await startService();
  client = new Client(service.target());
  [running, suspended] = await Promise.all([
    client.create({ name: "running" }),
    client.create({ name: "suspended" }),
  ]);
  counts = { running: await startCounter(client, running), suspended: await startCounter(client, suspended) };
  await client.call(running, "PUT", "/v1/store/kept", { json: { value: "durable" } });
  await client.shell(running, "echo synced > /root/kept; sync");
  const taken = await client.call(running, "POST", "/v1/checkpoint", { json: { name: "before the reboot" } });
  checkpoint = (JSON.parse(taken.body.toString()) as { checkpoint_id: string }).checkpoint_id;
  const wait = { checkpoint_id: checkpoint, timeout_secs: 60 };
  expect((await client.call(running, "POST", "/v1/checkpoint/wait", { json: wait })).status).toBe(200);
  await client.gateway("SuspendSandbox", { id: suspended.id });
  expect(await reaches(suspended.id, "SANDBOX_STATE_SUSPENDED")).toBe("SANDBOX_STATE_SUSPENDED");

  expect(sweep(service.home).length).toBeGreaterThan(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
  await service.start();
}, 400_000);
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await service?.destroy()).toEqual([]);
});

test("one that ran starts cold from its disk with the services that ran", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await reaches(running.id, "SANDBOX_STATE_RUNNING")).toBe("SANDBOX_STATE_RUNNING");
  expect(await client.shell(running, "cat /root/kept")).toBe("synced\n");
  const value = await client.call(running, "GET", "/v1/store/kept");
  expect(JSON.parse(value.body.toString())).toMatchObject({ value: "durable" });
  const record = await eventually(
    () => client.call(running, "GET", "/v1/services/counter"),
    ({ body }) => body.toString().includes('"running"'),
  );
  expect(JSON.parse(record.body.toString())).toMatchObject({ status: "running" });
  expect(await goesOn(client, running)).toBe(true);
  // A cold start: another process than before.
  expect((await countIn(client, running)).mine).not.toBe(counts.running.mine);
});

test("one that was suspended is still, and resumes as it was", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await stateOf(suspended.id)).toBe("SANDBOX_STATE_SUSPENDED");
  await client.gateway("ResumeSandbox", { id: suspended.id });
  expect(await reaches(suspended.id, "SANDBOX_STATE_RUNNING")).toBe("SANDBOX_STATE_RUNNING");
  const now = await countIn(client, suspended);
  expect(now.mine).toBe(counts.suspended.mine);
  expect(now.count).toBeGreaterThanOrEqual(counts.suspended.count);
  expect(await goesOn(client, suspended)).toBe(true);
});

test("a checkpoint can still be restored, and seeds another sandbox", async () => {
  await client.shell(running, "echo changed > /root/kept");
  const restored = await client.call(running, "POST", "/v1/restore", { json: { checkpoint_id: checkpoint } });
  expect(restored.status, restored.body.toString()).toBe(200);
  expect(await client.shell(running, "cat /root/kept")).toBe("synced\n");
  const seeded = await client.create({ checkpoint_id: checkpoint });
  expect(await client.shell(seeded, "cat /root/kept")).toBe("synced\n");
});
