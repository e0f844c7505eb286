// An upgrade as an operator makes it: the last release runs with sandboxes that run, doze and are suspended, ends by SIGTERM,
// and this checkout starts on the same home. Both have the same gVisor, so memory of one is restored by the other; what another
// gVisor saved is in tests/host/machines.test.ts.
import { existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { countIn, goesOn, startCounter } from "../faults/counter.ts";
import { leaveSleeping } from "../fixtures/background.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory, runFolder } from "../fixtures/inventory.ts";
import { repositoryRoot, TestService } from "../fixtures/service.ts";
import { isFrozen, unitNameOf } from "../fixtures/unit-cgroup.ts";
import { unpackLastRelease } from "./last-release.ts";

interface Sandbox {
  state: string;
  error_message: string;
}

let service: TestService;
let release: string;
let client: Client;
let running: TestSandbox;
let dozing: TestSandbox;
let suspended: TestSandbox;
let checkpoint: string;
let counts: Record<"running" | "suspended", string>;

const templateKeys = (): string[] => readdirSync(join(service.home, "pool", "templates-gvisor")).sort();
const sandboxOf = async ({ id }: { id: string }): Promise<Sandbox> =>
  (await client.gateway<{ sandbox: Sandbox }>("GetSandbox", { id })).sandbox;
const comesTo = async (sandbox: TestSandbox, state: string): Promise<Sandbox> => {
  const seen = await eventually(
    () => sandboxOf(sandbox),
    (one) => one.state === state,
    60_000,
  );
  expect(seen.state, seen.error_message).toBe(state);
  return seen;
};
const suspend = async (sandbox: TestSandbox): Promise<Sandbox> => {
  await client.gateway("SuspendSandbox", { id: sandbox.id });
  return comesTo(sandbox, "SANDBOX_STATE_SUSPENDED");
};
const resume = async (sandbox: TestSandbox): Promise<Sandbox> => {
  await client.gateway("ResumeSandbox", { id: sandbox.id });
  return comesTo(sandbox, "SANDBOX_STATE_RUNNING");
};
const checkpointOf = async (sandbox: TestSandbox): Promise<string> => {
  const taken = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  expect(taken.status, taken.body.toString()).toBe(200);
  const { checkpoint_id } = JSON.parse(taken.body.toString()) as { checkpoint_id: string };
  const wait = { checkpoint_id, timeout_secs: 60 };
  expect((await client.call(sandbox, "POST", "/v1/checkpoint/wait", { json: wait })).status).toBe(200);
  return checkpoint_id;
};
const restore = async (sandbox: TestSandbox, checkpoint_id: string): Promise<void> => {
  const answer = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } });
  expect(answer.status, answer.body.toString()).toBe(200);
};
const background = leaveSleeping("7777");
const backgroundOf = (sandbox: TestSandbox): Promise<string> =>
  client.shell(sandbox, "pgrep -fx 'sleep 7777' || true");

beforeAll(async () => {
  // One machine of each kind is kept ready by either release.
  service = await TestService.create({ CLOCHE_WARM_POOL: "1", CLOCHE_DOZE_SECONDS: "1" });
  release = `${service.home}-release`;
  mkdirSync(release);
  unpackLastRelease(release);
  service.checkout = release;
  await service.start();
  client = new Client(service.target());
  [running, suspended, dozing] = await Promise.all([client.create(), client.create(), client.create()]);
  const [a, b] = await Promise.all([running, suspended].map((one) => startCounter(client, one)));
  counts = { running: String(a?.mine), suspended: String(b?.mine) };
  await Promise.all([running, suspended].map((one) => client.shell(one, background)));
  await Promise.all([running, suspended, dozing].map((one) => client.shell(one, "echo kept > /root/kept")));
  checkpoint = await checkpointOf(running);
  await suspend(suspended);
  const frozen = await eventually(() => isFrozen(service.home, dozing.id), Boolean);
  expect(frozen).toBe(true);

  await service.terminate();
  service.checkout = repositoryRoot;
  await service.start();
}, 600_000);
afterAll(async () => {
  await client?.close().catch(() => undefined);
  const left = await service?.destroy();
  if (release) rmSync(release, { recursive: true, force: true });
  expect(left).toEqual([]);
});

test("what ran goes on, and its files, commands and checkpoints work", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await sandboxOf(running)).toMatchObject({ state: "SANDBOX_STATE_RUNNING", error_message: "" });
  expect((await countIn(client, running)).mine).toBe(counts.running);
  expect(await goesOn(client, running)).toBe(true);
  expect(await backgroundOf(running)).not.toBe("");
  await client.shell(running, "echo changed > /root/kept");
  const after = await checkpointOf(running);
  expect(await goesOn(client, running)).toBe(true);
  await restore(running, checkpoint);
  expect(await client.shell(running, "cat /root/kept")).toBe("kept\n");
  await restore(running, after);
  expect(await client.shell(running, "cat /root/kept")).toBe("changed\n");
  expect(await goesOn(client, running)).toBe(true);
});

test("what dozed is awake, and dozes again", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await client.shell(dozing, "cat /root/kept")).toBe("kept\n");
  for (let round = 0; round < 2; round += 1) {
    expect(await eventually(() => isFrozen(service.home, dozing.id), Boolean, 60_000)).toBe(true);
    expect(await client.shell(dozing, "echo awake")).toBe("awake\n");
  }
});

test("a running machine of the last release is forked with its memory, and from its checkpoints", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const forkOf = async (fields: object): Promise<TestSandbox> => {
    const { sandbox, data_plane_token: token } = await client.gateway<{
      sandbox: { id: string; domain: string };
      data_plane_token: string;
    }>("ForkSandbox", { source_sandbox_id: running.id, ...fields });
    client.session.adopt(sandbox.id);
    return { ...sandbox, token };
  };
  const { mine } = await countIn(client, running);
  const live = await forkOf({});
  expect((await countIn(client, live)).mine).toBe(mine);
  expect(await goesOn(client, live)).toBe(true);
  const cold = await forkOf({ checkpoint_id: checkpoint });
  expect(await client.shell(cold, "cat /root/kept")).toBe("kept\n");
  expect(await goesOn(client, cold)).toBe(true);
  expect(await goesOn(client, running)).toBe(true);
});

test("what was suspended, by either release, comes back with its memory and its processes", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await sandboxOf(suspended)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED", error_message: "" });
  const { mine: ofRunning } = await countIn(client, running);
  await client.shell(running, background); // a restore ended what ran before it
  await suspend(running);
  for (const [sandbox, mine] of [
    [suspended, counts.suspended],
    [running, ofRunning],
  ] as const) {
    expect((await resume(sandbox)).error_message).toBe("");
    expect((await countIn(client, sandbox)).mine).toBe(mine);
    expect(await backgroundOf(sandbox)).not.toBe("");
    expect(await goesOn(client, sandbox)).toBe(true);
  }
  expect(await client.shell(suspended, "cat /root/kept")).toBe("kept\n");
  expect(await client.shell(running, "cat /root/kept")).toBe("changed\n");
});

test("one template is kept, and machines are made of it", async () => {
  expect(await eventually(templateKeys, ({ length }) => length === 1)).toHaveLength(1);
  expect(await client.shell(await client.create(), "echo fresh")).toBe("fresh\n");
});

test("a machine of the last release is deleted, and a stop leaves nothing of either release", async () => {
  onTestFailed(() => console.error(service.logTail()));
  await client.session.discard(dozing.id);
  await eventually(
    async () => (await client.gateway<{ sandboxes: { id: string }[] }>("ListSandboxes")).sandboxes,
    (all) => all.every(({ id }) => id !== dozing.id),
  );
  await expect(unitNameOf(service.home, dozing.id)).rejects.toThrow(/no unit/);
  const stopped = await service.stop();
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
  expect(existsSync(runFolder(service.tag))).toBe(false);
});
