/** What happens to sandboxes whose host is lost, also when the gateway is killed at any of its effects. */
import { MachinePhase } from "@cloche/protocol/host";
import { Code } from "@connectrpc/connect";
import { afterEach, describe, expect, it } from "vitest";
import { LossWorld } from "../testing/loss-world.ts";
import { lostWithHost, lostWithoutCheckpoint, waitsForHost } from "./host-loss-messages.ts";

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";
const E = "SANDBOX_STATE_ERROR";
const restarts = { on_host_loss: "restart_from_checkpoint" };
/** These tests run many small worlds, which must not fail because the computer is busy. */
const patient = { timeout: 180_000 };

let world: LossWorld;
const open = async (): Promise<LossWorld> => (world = await LossWorld.open());
afterEach(() => world.close());

/** Adds two checkpoints; the second is the newest. */
async function addCheckpoints(sandboxId: string): Promise<void> {
  const { teamId } = await world.record(sandboxId);
  const { storedNames } = world.fleet.database;
  for (const index of [0, 1]) {
    const id = `ckpt-0000000000000000000${index}`;
    const createdAt = `2026-01-0${index + 1}T00:00:00.000Z`;
    const held = { name: `checkpoints/${id}`, isShared: false, inherited: [], own: [] };
    await storedNames.hold("h-1", held, 60_000);
    const checkpoint = { id, teamId, sandboxId, createdAt, sizeBytes: 1, header: "{}", packs: [] };
    await storedNames.nameCheckpoint("h-1", checkpoint);
  }
}

interface Scenario {
  name: string;
  /** The body of the call that creates the sandbox, whose host is lost later. */
  body?: object;
  /** Runs before the loss. */
  prepare?: (id: string) => Promise<void>;
  /** Runs after the loss. */
  ask?: (id: string) => Promise<unknown>;
  check: (id: string, before: { hostId: string; memory: string | undefined }) => Promise<void>;
}

const suspended = (id: string): Promise<void> => world.suspend(id);
const notStored = async (id: string): Promise<void> => {
  (await world.hostOf(id)).stores = false;
  await world.suspend(id);
};
/** Makes a request whose host call hangs. */
const hung =
  (call: "suspendMachine" | "resumeMachine" | "destroyMachine", method: string) => async (id: string) => {
    (await world.hostOf(id)).fault(call, "hang", Code.Unavailable, 99);
    expect((await world.gateway.call(method, { id })).status).toBe(200);
  };

const scenarios: Scenario[] = [
  {
    name: "one that is durable resumes elsewhere when it is asked to, with its memory",
    prepare: suspended,
    ask: (id) => world.gateway.call("ResumeSandbox", { id }).catch(() => undefined),
    async check(id, { hostId, memory }) {
      const record = await world.record(id);
      if (record.state === S) return expect(record.image).not.toBe("");
      expect(record).toMatchObject({ state: R, errorMessage: "", image: "" });
      expect(record.hostId).not.toBe(hostId);
      expect(await world.memory(id)).toBe(memory);
    },
  },
  {
    name: "one that is durable and not asked for stays as it is",
    prepare: suspended,
    async check(id, { hostId }) {
      expect(await world.record(id)).toMatchObject({ state: S, errorMessage: "", hostId });
      expect(await world.sandbox(id)).toMatchObject({ durable: true });
    },
  },
  {
    name: "one that is not durable waits for its host, and says so",
    prepare: notStored,
    async check(id, { hostId, memory }) {
      expect(await world.record(id)).toMatchObject({ state: S, errorMessage: waitsForHost, hostId });
      const answer = await world.gateway.call("ResumeSandbox", { id });
      expect(answer).toMatchObject({ status: 503, body: { code: "unavailable" } });
      await world.comeBack(hostId);
      expect(await world.record(id)).toMatchObject({ state: S, errorMessage: "", isHostLost: false });
      await world.gateway.call("ResumeSandbox", { id });
      await world.settle();
      expect(await world.record(id)).toMatchObject({ state: R, hostId });
      expect(await world.memory(id)).toBe(memory);
    },
  },
  {
    name: "one that ran is in ERROR, and goes on when its host is back with it",
    async check(id, { hostId, memory }) {
      expect(await world.record(id)).toMatchObject({ state: E, errorMessage: lostWithHost, hostId });
      await world.comeBack(hostId);
      expect(await world.record(id)).toMatchObject({ state: R, errorMessage: "", hostId });
      expect(await world.memory(id)).toBe(memory);
    },
  },
  {
    name: "one that ran starts from its newest visible checkpoint where it is to",
    body: restarts,
    prepare: addCheckpoints,
    async check(id, { hostId }) {
      const record = await world.record(id);
      expect(record).toMatchObject({ state: R, isMoving: false, sourceCheckpointId: "" });
      expect(record.hostId).not.toBe(hostId);
      expect(record.errorMessage).toMatch(
        /lost.*restarted from checkpoint ckpt-00000000000000000001 of 2026-01-02/,
      );
      expect((await world.hostOf(id)).seeds.get(id)).toBe("ckpt-00000000000000000001");
      expect((await world.sandbox(id)).domain).toMatch(new RegExp(`^${id}[.]`));
      await world.comeBack(hostId);
      expect(world.host(hostId).machines.has(id)).toBe(false);
    },
  },
  {
    name: "one that ran and has no checkpoint is in ERROR",
    body: restarts,
    async check(id) {
      expect(await world.record(id)).toMatchObject({ state: E, errorMessage: lostWithoutCheckpoint });
    },
  },
  {
    name: "one that was being suspended is as one that ran",
    prepare: hung("suspendMachine", "SuspendSandbox"),
    async check(id) {
      expect(await world.record(id)).toMatchObject({ state: E, errorMessage: lostWithHost });
    },
  },
  {
    name: "one that was being suspended starts from its checkpoint where it is to",
    body: restarts,
    async prepare(id) {
      await addCheckpoints(id);
      await hung("suspendMachine", "SuspendSandbox")(id);
    },
    async check(id, { hostId }) {
      expect(await world.record(id)).toMatchObject({ state: R });
      expect((await world.record(id)).hostId).not.toBe(hostId);
    },
  },
  {
    name: "one that was being resumed and is durable is resumed elsewhere",
    async prepare(id) {
      await world.suspend(id);
      await hung("resumeMachine", "ResumeSandbox")(id);
    },
    async check(id, { hostId, memory }) {
      expect(await world.record(id)).toMatchObject({ state: R, errorMessage: "" });
      expect((await world.record(id)).hostId).not.toBe(hostId);
      expect(await world.memory(id)).toBe(memory);
    },
  },
  {
    name: "one that was being resumed and is not durable waits for its host",
    async prepare(id) {
      await notStored(id);
      await hung("resumeMachine", "ResumeSandbox")(id);
    },
    async check(id, { hostId }) {
      expect(await world.record(id)).toMatchObject({ state: S, errorMessage: waitsForHost, hostId });
    },
  },
  {
    name: "one that was being deleted is gone, on its host too once that is back",
    prepare: hung("destroyMachine", "DeleteSandbox"),
    async check(id, { hostId }) {
      expect(await world.fleet.database.sandboxes.get(id)).toBeUndefined();
      world.host(hostId).clearFaults();
      await world.comeBack(hostId);
      expect(world.host(hostId).machines.has(id)).toBe(false);
    },
  },
];

/** Runs a scenario up to the loss of the host. */
async function begin({ body, prepare }: Scenario) {
  await open();
  const id = await world.create(body);
  const memory = await world.memory(id);
  await prepare?.(id);
  return { id, memory, hostId: (await world.record(id)).hostId };
}

describe("of a host that is lost", patient, () => {
  it.each(scenarios)("$name", async (scenario) => {
    const { id, ...before } = await begin(scenario);
    await world.fleet.lose(before.hostId);
    const asked = scenario.ask?.(id);
    await world.settle();
    await asked;
    await scenario.check(id, before);
    await world.checkTruth();
  });

  it.each(scenarios)("$name: the gateway killed at everything it does", async (scenario) => {
    let events = 0;
    for (let hasDied = true; hasDied; events += 1) {
      const { id, ...before } = await begin(scenario);
      world.mortal.arm(events + 1, events % 2 === 0 ? "before" : "after");
      await world.fleet.lose(before.hostId);
      const asked = scenario.ask?.(id);
      await world.settle(20, 1);
      hasDied = world.mortal.isDead;
      const where = `at ${world.mortal.log.at(-1)} (event ${events + 1})`;
      await world.replaceGateway("b");
      await asked;
      await world.settle();
      await scenario.check(id, before).catch((error: unknown) => {
        throw new Error(`killed ${where}`, { cause: error });
      });
      await world.checkTruth();
      if (hasDied) await world.close();
    }
    expect(events).toBeGreaterThan(2);
  });

  it("one that is being made is made elsewhere", async () => {
    await open();
    for (const host of world.fleet.hosts.values()) host.fault("createMachine", "hang");
    const answer = world.gateway.call("CreateSandbox", { name: "new" });
    await expect.poll(() => world.fleet.database.sandboxes.all()).toHaveLength(1);
    const [record] = await world.fleet.database.sandboxes.all();
    const hostId = record?.hostId ?? "";
    for (const [id, host] of world.fleet.hosts) if (id !== hostId) host.clearFaults();
    await world.fleet.lose(hostId);
    await world.settle();
    const { id, state } = (await answer).body.sandbox;
    expect(state).toBe(R);
    expect((await world.record(id)).hostId).not.toBe(hostId);
    await world.checkTruth();
  });

  it("compute time ends at what was seen", async () => {
    await open();
    const id = await world.create();
    await world.fleet.clock.advance(90_000);
    await world.settle();
    const lostAtMs = world.fleet.clock.nowMs();
    await world.lose(id);
    await world.fleet.clock.advance(600_000);
    const { last_ran_at } = (await world.gateway.call("GetUsage", { sandbox_id: id })).body.usage[0];
    expect(Date.parse(last_ran_at)).toBeLessThanOrEqual(lostAtMs);
  });

  it("one that ran, and whose host rebooted, starts from its disk there", async () => {
    await open();
    const id = await world.create();
    const hostId = await world.lose(id);
    await world.settle();
    world.host(hostId).reboot();
    await world.comeBack(hostId);
    expect(await world.record(id)).toMatchObject({ state: R, hostId, isHostLost: false });
    await world.checkTruth();
  });

  it("one that did not come back with its host stays in ERROR", async () => {
    await open();
    const id = await world.create();
    const hostId = await world.lose(id);
    await world.settle();
    world.host(hostId).lose(id);
    await world.comeBack(hostId);
    expect(await world.record(id)).toMatchObject({ state: E, errorMessage: lostWithHost, isHostLost: false });
  });

  it("one waits for room elsewhere rather than fail", async () => {
    await open();
    const id = await world.create({ ...restarts, memory_mb: 5_000 });
    await addCheckpoints(id);
    const others = await Promise.all([1, 2].map(() => world.create({ memory_mb: 5_000 })));
    await world.lose(id);
    await world.settle(20);
    expect(await world.record(id)).toMatchObject({ state: "SANDBOX_STATE_RESUMING" });
    await world.gateway.call("DeleteSandbox", { id: others[0] });
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R });
    await world.checkTruth();
  });

  it("none is told anything while its host is not lost", async () => {
    await open();
    const id = await world.create(restarts);
    await addCheckpoints(id);
    const host = await world.hostOf(id);
    host.isCutOff = true;
    host.breakStreams();
    await world.settle(20);
    expect(await world.record(id)).toMatchObject({ state: R, generation: 2 });
    host.isCutOff = false;
  });

  it("a resume on a CPU of another class starts from the disk, and says so", async () => {
    await open();
    const id = await world.create();
    (await world.hostOf(id)).cpuClass = "one";
    await world.suspend(id);
    const memory = await world.memory(id);
    await world.lose(id);
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R, errorMessage: "without its memory" });
    expect(await world.memory(id)).not.toBe(memory);
  });

  it("a copy of an earlier suspension is not what is resumed", async () => {
    await open();
    const id = await world.create();
    await world.suspend(id);
    const first = (await world.record(id)).hostId;
    await world.fleet.database.hosts.setState(first, "cordoned");
    await world.fleet.clock.advance(2_000);
    const stale = world.host(first).machines.get(id);
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect((await world.record(id)).hostId).not.toBe(first);
    await world.suspend(id);
    const memory = await world.memory(id);
    await world.lose(id);
    // No comparison has destroyed the old copy yet, and no other host takes machines.
    for (const other of ["h-1", "h-2", "h-3"])
      if (other !== first) await world.fleet.database.hosts.setState(other, "cordoned");
    await world.fleet.database.hosts.setState(first, "open");
    await world.fleet.clock.advance(2_000);
    if (stale !== undefined) world.host(first).machines.set(id, stale);
    world.host(first).memories.set(id, "of the earlier suspension");
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R, hostId: first });
    expect(await world.memory(id)).toBe(memory);
    await world.checkTruth();
  });

  it("an image that cannot be brought leaves it SUSPENDED, to be tried again", async () => {
    await open();
    const id = await world.create();
    await world.suspend(id);
    await world.lose(id);
    for (const host of world.fleet.hosts.values())
      host.fault("importMachine", "before", Code.FailedPrecondition, 1, "the suspended image is damaged");
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    const record = await world.record(id);
    expect(record).toMatchObject({ state: S, errorMessage: expect.stringMatching(/image is damaged/) });
    expect(record.image).not.toBe("");
    for (const host of world.fleet.hosts.values()) host.clearFaults();
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R });
    expect(MachinePhase[(await world.hostOf(id)).phase(id) ?? 0]).toBe("RUNNING");
  });
});
