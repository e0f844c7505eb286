// An upgrade as an operator makes it: the last release runs with sandboxes that run, doze and are suspended, ends by SIGTERM,
// and this checkout starts on the same home. The two have different versions of gVisor, so no memory of one can be
// restored by the other.
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
let templates: string[];
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
const auditOf = async (sandbox: TestSandbox, action: string): Promise<string[]> => {
  const { entries } = await client.gateway<{ entries: { action: string; detail: string }[] }>(
    "ListAuditEntries",
    { subject: sandbox.id },
  );
  return entries.filter((entry) => entry.action === action).map(({ detail }) => detail);
};
/** Memory of an earlier gVisor is lost, and what was done about it. */
const cameBackCold =
  /^started from its disk, without its memory: .*earlier release of Cloche.*gVisor 2026\S+.*; services started: counter$/;

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
  templates = templateKeys();

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

test("what dozed, frozen as a whole, is awake, and dozes as every machine does now", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await client.shell(dozing, "cat /root/kept")).toBe("kept\n");
  for (let round = 0; round < 2; round += 1) {
    expect(await eventually(() => isFrozen(service.home, dozing.id), Boolean, 60_000)).toBe(true);
    expect(await client.shell(dozing, "echo awake")).toBe("awake\n");
  }
});

test("a running machine of the last release is not forked with its memory, but its checkpoints are", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const live = client.gateway("ForkSandbox", { source_sandbox_id: running.id });
  await expect(live).rejects.toThrow(
    /failed_precondition.*has run since before an upgrade.*fork from one of its checkpoints.*suspend and resume it first/,
  );
  expect(await goesOn(client, running)).toBe(true);
  const fields = { source_sandbox_id: running.id, checkpoint_id: checkpoint };
  const { sandbox, data_plane_token: token } = await client.gateway<{
    sandbox: { id: string; domain: string };
    data_plane_token: string;
  }>("ForkSandbox", fields);
  const clone = { ...sandbox, token };
  client.session.adopt(clone.id);
  expect(await client.shell(clone, "cat /root/kept")).toBe("kept\n");
  expect(await goesOn(client, clone)).toBe(true);
});

test("what was suspended comes back from its disk with its services, and says so until its next change", async () => {
  onTestFailed(() => console.error(service.logTail()));
  expect(await sandboxOf(suspended)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED", error_message: "" });
  const { error_message: words } = await resume(suspended);
  expect(words).toMatch(cameBackCold);
  expect(await auditOf(suspended, "sandbox.resume.done")).toEqual([words]);
  expect(await client.shell(suspended, "cat /root/kept")).toBe("kept\n");
  expect(await backgroundOf(suspended)).toBe("");
  expect(await goesOn(client, suspended)).toBe(true);
  expect((await countIn(client, suspended)).mine).not.toBe(counts.suspended);
  await client.gateway("UpdateSandbox", { id: suspended.id, name: "renamed" });
  expect((await sandboxOf(suspended)).error_message).toBe(words);

  // Its memory is of this release from now on.
  const { mine } = await countIn(client, suspended);
  expect((await suspend(suspended)).error_message).toBe("");
  expect((await resume(suspended)).error_message).toBe("");
  expect((await countIn(client, suspended)).mine).toBe(mine);
});

test("a running machine of the last release that is suspended comes back from its disk", async () => {
  onTestFailed(() => console.error(service.logTail()));
  await suspend(running);
  const { error_message: words } = await resume(running);
  expect(words).toMatch(cameBackCold);
  expect(await client.shell(running, "cat /root/kept")).toBe("changed\n");
  expect(await goesOn(client, running)).toBe(true);
  const { mine } = await countIn(client, running);
  const { sandbox, data_plane_token: token } = await client.gateway<{
    sandbox: { id: string; domain: string };
    data_plane_token: string;
  }>("ForkSandbox", { source_sandbox_id: running.id });
  client.session.adopt(sandbox.id);
  expect((await countIn(client, { ...sandbox, token })).mine).toBe(mine);
});

test("templates and machines kept ready are made anew", async () => {
  const now = await eventually(templateKeys, (names) => names.every((name) => !templates.includes(name)));
  expect(now).toHaveLength(1);
  expect(now).not.toEqual(templates);
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
