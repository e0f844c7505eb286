/** Forks of a suspended sandbox whose host takes no new ones: lost, cordoned or draining. */
import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, describe, expect, it } from "vitest";
import { imageOf } from "../database/sandbox-record.ts";
import { LossWorld } from "../testing/loss-world.ts";
import { forkWaitsForAnswer, forkWaitsForHost, forkWaitsForStorage } from "./host-loss-messages.ts";

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";
/** Of many small worlds: a busy machine must not turn them into failures. */
const patient = { timeout: 180_000 };

let world: LossWorld;
afterEach(() => world.close());

const ways: [string, (hostId: string) => Promise<unknown>][] = [
  ["lost", (hostId) => world.fleet.lose(hostId)],
  ["silent", (hostId) => silence(hostId)],
  ["cordoned", (hostId) => setState(hostId, "cordoned")],
  ["draining", (hostId) => setState(hostId, "draining")],
];

async function setState(hostId: string, state: "cordoned" | "draining" | "open"): Promise<void> {
  await world.fleet.database.hosts.setState(hostId, state);
  await world.fleet.clock.advance(3_000);
}

/** The host is gone, and no gateway has declared it lost yet. */
async function silence(hostId: string): Promise<void> {
  const host = world.host(hostId);
  host.isCutOff = true;
  host.breakStreams();
  await world.fleet.database.hosts.register(await world.fleet.row(hostId), 15_000);
  await world.fleet.clock.advance(3_000);
}

/** A suspended sandbox, and the host that it is on. */
async function begin(isDurable: boolean) {
  world = await LossWorld.open();
  const id = await world.create();
  const { hostId } = await world.record(id);
  world.host(hostId).stores = isDurable;
  await world.suspend(id);
  return { id, hostId };
}

/** Hosts have been compared with the records, and the copy that the source left behind is gone. */
async function compared(): Promise<void> {
  await world.fleet.clock.advance(61_000);
  await world.settle();
}

const fork = (id: string, count = 1) => world.gateway.call("ForkSandbox", { source_sandbox_id: id, count });

describe.each(ways)("of one whose host is %s", patient, (way, take) => {
  it("are made on another host, out of what is in storage", async () => {
    const { id, hostId } = await begin(true);
    await take(hostId);
    const answer = fork(id, 3);
    await world.settle();
    const made = (await answer).body.sandboxes as { id: string; state: string }[];
    expect(made.map(({ state }) => state)).toEqual([R, R, R]);
    const source = await world.record(id);
    expect(source.state).toBe(S);
    expect(source.hostId).not.toBe(hostId);
    for (const one of made) expect((await world.record(one.id)).hostId).toBe(source.hostId);
    const host = world.host(source.hostId);
    expect(host.machines.get(id)?.storedImage?.key).toBe(imageOf(source)?.key);
    expect(host.phase(id)).toBe(MachinePhase.SUSPENDED);
    // It goes on there, with its memory.
    const memory = host.memories.get(id);
    expect(memory).toBeDefined();
    const resumed = world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect((await resumed).status).toBe(200);
    expect(await world.memory(id)).toBe(memory);
    await compared();
    await world.checkTruth();
  });

  it("wait until it is durable or its host is back, and say so", async () => {
    const { id, hostId } = await begin(false);
    await take(hostId);
    const answer = fork(id);
    await world.settle();
    const refused = await answer;
    const words =
      { lost: forkWaitsForHost, silent: forkWaitsForAnswer }[way as "lost" | "silent"] ?? forkWaitsForStorage;
    expect([refused.status, refused.body.message]).toEqual([503, `source_sandbox_id: ${words}`]);
    expect(refused.headers.get("retry-after")).not.toBeNull();
    expect(await world.record(id)).toMatchObject({ state: S, hostId });
    await world.checkTruth();
  });
});

it("of one that runs on a host that is silent are refused, and leave no record", patient, async () => {
  world = await LossWorld.open();
  const id = await world.create();
  await silence((await world.record(id)).hostId);
  const answer = fork(id);
  await world.fleet.clock.advance(2_000);
  const refused = await answer;
  expect([refused.status, refused.body.message]).toEqual([503, `source_sandbox_id: ${forkWaitsForAnswer}`]);
  expect(refused.headers.get("retry-after")).not.toBeNull();
  expect((await world.fleet.database.sandboxes.all()).map((one) => one.id)).toEqual([id]);
});

it("of one whose host left on purpose wait for it", patient, async () => {
  const { id, hostId } = await begin(false);
  world.host(hostId).isCutOff = true;
  const answer = fork(id);
  await world.fleet.clock.advance(2_000);
  world.host(hostId).isCutOff = false;
  await world.settle();
  expect((await world.record((await answer).body.sandbox.id)).hostId).toBe(hostId);
});

it.each(ways.slice(0, 3))(
  "of one whose host is %s come about with the gateway killed at everything it does",
  patient,
  async (_, take) => {
    let events = 0;
    for (let hasDied = true; hasDied; events += 1) {
      const { id, hostId } = await begin(true);
      await take(hostId);
      world.mortal.arm(events + 1, events % 2 === 0 ? "before" : "after");
      const asked = fork(id).catch(() => undefined);
      await world.settle(20, 1);
      hasDied = world.mortal.isDead;
      await world.replaceGateway("b");
      await asked;
      await world.settle();
      const others = (await world.fleet.database.sandboxes.all()).filter((one) => one.id !== id);
      for (const one of others) {
        expect(one.state).toBe(R);
        expect(one.hostId).not.toBe(hostId);
      }
      expect((await world.record(id)).state).toBe(S);
      await compared();
      await world.checkTruth();
      if (hasDied) await world.close();
    }
    expect(events).toBeGreaterThan(2);
  },
);

it("of one whose host is open stay with it", async () => {
  const { id, hostId } = await begin(true);
  const answer = await fork(id);
  expect((await world.record(answer.body.sandbox.id)).hostId).toBe(hostId);
});

it("of one whose host is back, but not admitted yet, are made on another host", async () => {
  const { id, hostId } = await begin(true);
  await world.fleet.lose(hostId);
  await world.fleet.register(hostId);
  // Nobody can reach it, and so nobody admits it.
  world.host(hostId).isCutOff = true;
  await world.fleet.clock.advance(3_000);
  expect(await world.fleet.row(hostId)).toMatchObject({ isLost: false, awaitsAdmission: true });
  const answer = await fork(id);
  expect([answer.status, answer.body.sandbox?.state]).toEqual([200, R]);
  expect((await world.record(answer.body.sandbox.id)).hostId).not.toBe(hostId);
});

it("of one whose image another fork is fetching wait for it", async () => {
  const { id, hostId } = await begin(true);
  await setState(hostId, "cordoned");
  for (const host of world.fleet.hosts.values()) host.holdImports();
  const first = fork(id);
  await world.settle(3);
  const others = fork(id, 2);
  await world.settle(3);
  for (const host of world.fleet.hosts.values()) host.releaseImports();
  await world.settle();
  const answers = await Promise.all([first, others]);
  const states = answers.map(({ body }) => body.sandboxes?.map(({ state }: { state: string }) => state));
  expect(states).toEqual([[R], [R, R]]);
});
