/**
 * Two gateways on one database and host: which of them runs an operation, and what happens when that gateway is gone.
 */
import { silentLog } from "@cloche/base";
import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Database, openSqlite } from "../database/database.ts";
import { anAuditEntry, anOperation, aSandbox } from "../testing/database-records.ts";
import { FakeClock, quiet } from "../testing/fake-clock.ts";
import { World } from "../testing/world.ts";
import { OperationLeases } from "./operation-leases.ts";
import type { OperationRunner } from "./operation-runner.ts";

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";
const gone = "not_found";

const running = async (world: World): Promise<string> => (await world.call("CreateSandbox")).body.sandbox.id;
const suspended = async (world: World): Promise<string> => {
  const id = await running(world);
  await world.call("SuspendSandbox", { id });
  await world.settle();
  return id;
};

const scenarios = [
  { name: "create", prepare: async () => "", method: "CreateSandbox", ends: [R, gone] },
  { name: "fork", prepare: running, method: "ForkSandbox", ends: [R, gone] },
  { name: "fork of two", prepare: running, method: "ForkSandbox", count: 2, ends: [R, gone] },
  { name: "suspend", prepare: running, method: "SuspendSandbox", ends: [S, R] },
  { name: "resume", prepare: suspended, method: "ResumeSandbox", ends: [R, S] },
  { name: "delete", prepare: running, method: "DeleteSandbox", ends: [gone, R] },
];

/** These tests run many small worlds, which must not fail because the computer is busy. */
const patient = { timeout: 180_000 };

describe("a gateway killed at everything it does", patient, () => {
  it.each(scenarios)("$name is finished once by the other, within 20 s", async (scenario) => {
    const { prepare, method, count, ends } = scenario;
    let events = 0;
    for (let hasDied = true; hasDied; events += 1) {
      const world = await World.open("a");
      const other = await world.join("b");
      const prepared = await prepare(world);
      const body = method === "ForkSandbox" ? { source_sandbox_id: prepared, count } : { id: prepared };
      world.mortal.arm(events + 1, "before");
      await world.callUnlessKilled(method, method === "CreateSandbox" ? {} : body);
      await world.settle();
      hasDied = world.mortal.isDead;
      const where = `before ${world.mortal.log.at(-1)} (event ${events + 1})`;
      await world.kill();
      const diedAtMs = world.clock.nowMs();
      await other.settle();
      expect(world.clock.nowMs() - diedAtMs, where).toBeLessThanOrEqual(20_000);
      await other.checkTruth();
      const records = await world.database.sandboxes.all();
      const isMade = ["CreateSandbox", "ForkSandbox"].includes(method);
      const subjects = records.filter(({ id }) => (id === prepared) !== isMade);
      const states = new Set(subjects.map(({ state }) => state));
      expect(ends, where).toEqual(expect.arrayContaining(states.size === 0 ? [gone] : [...states]));
      if (isMade) expect([0, count ?? 1], where).toContain(subjects.length);
      for (const { id, teamId } of subjects) {
        const entries = await world.database.audit.list({ teamId, subject: id, limit: 20 });
        const done = entries.map(({ action }) => action).filter((action) => action.endsWith(".done"));
        expect(new Set(done).size, where).toBe(done.length);
      }
      await other.close();
    }
    // With fewer events the model would no longer see the gateway's effects.
    expect(events).toBeGreaterThan(4);
  });
});

it(
  "an operation that takes long stays with its gateway, however often the other looks",
  patient,
  async () => {
    const world = await World.open("a");
    const other = await world.join("b");
    world.host.fault("createMachine", "hang");
    const answer = world.call("CreateSandbox").then(({ body }) => body.sandbox.state);
    await world.clock.advance(60_000);
    expect(await answer).toBe("SANDBOX_STATE_CREATING");
    expect(await world.database.operations.all()).toMatchObject([{ owner: "a", attempt: 1 }]);
    expect(world.host.calls.filter((call) => call.startsWith("createMachine"))).toHaveLength(1);
    world.host.letGo();
    await world.settle();
    await other.settle();
    await world.checkTruth();
    await other.kill();
    await world.close();
  },
);

it("a gateway that stops leaves its operations to the others at once", patient, async () => {
  const world = await World.open("a");
  const other = await world.join("b");
  world.host.fault("createMachine", "hang");
  const answer = world.call("CreateSandbox").catch(() => undefined);
  await world.clock.advance(3_000);
  await world.gateway.close();
  await answer;
  const closedAtMs = world.clock.nowMs();
  await other.settle();
  expect(world.clock.nowMs() - closedAtMs).toBeLessThanOrEqual(2_500);
  await other.checkTruth();
  expect((await world.database.sandboxes.all()).map(({ state }) => state)).toEqual([R]);
  await other.close();
});

it("a look at a machine that an operation overtook is no reason to act", patient, async () => {
  const world = await World.open();
  const id = await running(world);
  const { client } = world.host;
  const find = client.getMachine;
  const isHeld = Promise.withResolvers<void>();
  client.getMachine = async (...call) => {
    const seen = await find(...call);
    await isHeld.promise;
    return seen;
  };
  world.host.set(id, MachinePhase.RUNNING);
  await quiet();
  await world.call("SuspendSandbox", { id });
  await world.settle();
  client.getMachine = find;
  isHeld.resolve();
  await world.settle();
  await world.checkTruth();
  expect((await world.database.sandboxes.get(id))?.state).toBe(S);
  await world.close();
});

describe("the leases of a gateway", () => {
  let clock: FakeClock;
  let db: Database;
  let leases: OperationLeases;
  let launched: string[];
  let dropped: string[];
  let begunAgain: string[];

  beforeEach(async () => {
    clock = new FakeClock();
    db = await openSqlite(":memory:", clock);
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: 0 });
    launched = [];
    dropped = [];
    begunAgain = [];
    const runner: Pick<OperationRunner, "running" | "drop" | "goOn"> = {
      running: () => launched,
      drop(ids) {
        dropped.push(...ids);
        launched = launched.filter((id) => !ids.includes(id));
      },
      goOn: ({ id, attempt }) => void begunAgain.push(`${id} ${attempt}`),
    };
    leases = new OperationLeases({
      operations: db.operations,
      runner: runner as OperationRunner,
      owner: "a",
      clock,
      log: silentLog,
    });
  });
  afterEach(async () => {
    await leases.close();
    await db.close();
  });

  const begin = async (id: string, owner: string): Promise<void> => {
    const record = aSandbox();
    const operation = anOperation({ id, owner, sandboxId: record.id });
    await db.sandboxes.insert([{ record, begin: operation, audit: anAuditEntry() }]);
    if (owner === "a") launched.push(id);
  };

  it("are let go of before they are over, where the database does not answer", async () => {
    await begin("op-1", "a");
    leases.start();
    await clock.advance(5_000);
    // The last renewal that succeeded was at 5 s.
    const never = new Promise<string[]>(() => undefined);
    const renew = db.operations.renew.bind(db.operations);
    db.operations.renew = () => never;
    await clock.advance(7_499);
    expect(dropped).toEqual([]);
    await clock.advance(1);
    expect(dropped).toEqual(["op-1"]);
    db.operations.renew = renew;
    await clock.advance(5_000);
    expect(begunAgain).toEqual(["op-1 2"]);
  });

  it("of what another took over are dropped, and what another holds is left alone until its lease is over", async () => {
    await begin("op-1", "a");
    await begin("op-2", "b");
    await db.operations.release("a");
    await db.operations.takeOver("c", []);
    leases.start();
    await clock.advance(9_999);
    expect(dropped).toEqual(["op-1"]);
    expect(begunAgain).toEqual([]);
    await clock.advance(2_500);
    expect(begunAgain.toSorted()).toEqual(["op-1 3", "op-2 2"]);
  });
});
