// The service is killed at random moments of random operations and started again: running machines were never interrupted,
// what was answered holds, what was half done is completed or undone, and in the end nothing is orphaned.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory } from "../fixtures/inventory.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { type Count, countIn, goesOn, startCounter } from "./counter.ts";
import { choices, seed } from "./seed.ts";

const rounds = Number(process.env["CLOCHE_FAULT_ROUNDS"] ?? 5);
const settled = new Set(["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDED"]);

interface Listed {
  id: string;
  state: string;
  domain: string;
  error_message: string;
}

let service: TestService;
let client: Client;
let anchor: TestSandbox;
let anchored: Count;
/** What was answered and must hold: store values of the anchor, deleted sandboxes, checkpoints. */
const promised = {
  values: new Map<string, number>(),
  deleted: new Set<string>(),
  checkpoints: new Set<string>(),
};

/** Of each round: from the moment at which the service listened to the one at which no sandbox was on its way any more. */
const toTruthMs: number[] = [];

beforeAll(async () => {
  service = await startService();
  client = new Client(service.target());
  anchor = await client.create({ name: "anchor" });
  anchored = await startCounter(client, anchor);
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await service?.destroy()).toEqual([]);
});

const list = async (): Promise<Listed[]> =>
  (await client.gateway<{ sandboxes: Listed[] }>("ListSandboxes")).sandboxes;
const others = async (): Promise<Listed[]> => (await list()).filter(({ id }) => id !== anchor.id);

async function tokenOf(id: string): Promise<string> {
  return (await client.gateway<{ jwt: string }>("IssueDataPlaneToken", { sandbox_id: id })).jwt;
}

/** One operation of some kind on some sandbox; whatever it answers is recorded where it promises something. */
async function disturb(kind: string, target: Listed | undefined, mark: number): Promise<void> {
  if (kind === "create" || target === undefined) {
    await client.gateway("CreateSandbox", { name: `made-${mark}` });
  } else if (kind === "delete") {
    await client.gateway("DeleteSandbox", { id: target.id });
    promised.deleted.add(target.id);
  } else if (kind === "fork") {
    await client.gateway("ForkSandbox", { source_sandbox_id: anchor.id, name: `fork-${mark}` });
  } else if (kind === "checkpoint") {
    const answer = await client.call(anchor, "POST", "/v1/checkpoint", { json: { name: `mark-${mark}` } });
    if (answer.status === 200)
      promised.checkpoints.add(
        (JSON.parse(answer.body.toString()) as { checkpoint_id: string }).checkpoint_id,
      );
  } else if (kind === "store") {
    const answer = await client.call(anchor, "PUT", `/v1/store/mark-${mark}`, { json: { value: mark } });
    if (answer.status === 200) promised.values.set(`mark-${mark}`, mark);
  } else {
    await client.gateway(kind, { id: target.id });
  }
}

const kinds = [
  "create",
  "create",
  "fork",
  "SuspendSandbox",
  "SuspendSandbox",
  "ResumeSandbox",
  "delete",
  "checkpoint",
  "store",
  "store",
] as const;

test.each(Array.from({ length: rounds }, (_, round) => round))(
  "round %i of kill -9",
  { timeout: 300_000 },
  async (round) => {
    onTestFailed(() => console.error(`seed ${seed}, round ${round}\n${service.logTail()}`));
    const random = choices(seed + round);
    const before = await others();
    const operations = Array.from({ length: 6 }, (_, index) => {
      const kind = random.oneOf(kinds);
      const at = before.length === 0 ? undefined : before[random.below(before.length)];
      const delayMs = random.below(600);
      return new Promise((resolve) => setTimeout(resolve, delayMs))
        .then(() => disturb(kind, at, round * 100 + index))
        .catch(() => undefined);
    });
    await new Promise((resolve) => setTimeout(resolve, random.below(1_200)));
    await service.kill9();
    await Promise.all(operations);
    await service.start();

    const after = await eventually(
      list,
      (seen) =>
        seen.every(({ state }) => settled.has(state)) && seen.every(({ id }) => !promised.deleted.has(id)),
      60_000,
    );
    // Written when it listens.
    toTruthMs.push(Date.now() - statSync(join(service.home, "run", "status.json")).mtimeMs);
    expect(after.filter(({ state }) => !settled.has(state))).toEqual([]);
    expect(after.filter(({ id }) => promised.deleted.has(id))).toEqual([]);

    // Never interrupted: the same process counts on.
    const now = await countIn(client, anchor);
    expect(now.mine).toBe(anchored.mine);
    expect(now.count).toBeGreaterThan(anchored.count);
    expect(await goesOn(client, anchor)).toBe(true);
    anchored = now;

    for (const [key, value] of promised.values) {
      const got = await client.call(anchor, "GET", `/v1/store/${key}`);
      expect(JSON.parse(got.body.toString()), key).toMatchObject({ value });
    }
    for (const { id, state, domain } of after) {
      if (state !== "SANDBOX_STATE_RUNNING") continue;
      const ran = await client.exec({ id, domain, token: await tokenOf(id) }, ["echo", "truly running"]);
      expect(ran.stdout, id).toBe("truly running\n");
    }
  },
);

test("every sandbox was in a state that is true within 5 s of a start", () => {
  console.error(`ms from listening to the truth, by round: ${toTruthMs.map(Math.round).join(" ")}`);
  // Not of the slowest: an operation that was cut off takes as long again as it takes, and its state says that it goes on.
  const median = toTruthMs.toSorted((a, b) => a - b)[Math.floor(toTruthMs.length / 2)];
  expect(median).toBeLessThan(5_000);
});

test("every answered checkpoint became visible", async () => {
  const visible = async (): Promise<string[]> =>
    (await client.gateway<{ checkpoints: { id: string; visible: boolean }[] }>("ListCheckpoints")).checkpoints
      .filter((one) => one.visible)
      .map(({ id }) => id);
  const seen = await eventually(
    visible,
    (ids) => [...promised.checkpoints].every((id) => ids.includes(id)),
    60_000,
  );
  expect(seen).toEqual(expect.arrayContaining([...promised.checkpoints]));
});

test("what was suspended resumes", { timeout: 300_000 }, async () => {
  for (const { id, state, domain } of await others()) {
    if (state !== "SANDBOX_STATE_SUSPENDED") continue;
    await client.gateway("ResumeSandbox", { id });
    const resumed = await eventually(
      async () => (await client.gateway<{ sandbox: Listed }>("GetSandbox", { id })).sandbox,
      (seen) => seen.state === "SANDBOX_STATE_RUNNING",
    );
    expect(resumed).toMatchObject({ state: "SANDBOX_STATE_RUNNING", error_message: "" });
    expect((await client.exec({ id, domain, token: await tokenOf(id) }, ["echo", "back"])).stdout).toBe(
      "back\n",
    );
  }
});

test("when all is deleted nothing is orphaned", { timeout: 300_000 }, async () => {
  const { checkpoints } = await client.gateway<{ checkpoints: { id: string }[] }>("ListCheckpoints");
  for (const { id } of checkpoints) await client.gateway("DeleteCheckpoint", { id });
  for (const { id } of await list()) await client.gateway("DeleteSandbox", { id });
  expect(await eventually(list, (seen) => seen.length === 0, 60_000)).toEqual([]);
  const stopped = await service.stop();
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
  // Disks of machines and packs of checkpoints lie in files: none may be left when nobody has them any more.
  await service.start();
  const machines = join(service.home, "pool", "machines");
  const left = await eventually(
    () => readdirSync(machines).filter((name) => name.startsWith("sbx-")),
    (names) => names.length === 0,
  );
  expect(left).toEqual([]);
});
