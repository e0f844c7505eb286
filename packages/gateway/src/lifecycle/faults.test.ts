/**
 * Kills the gateway before and after each of its effects, fails each host call in turn, and mixes both at random, on a
 * model of the host. After the next start every record must be true of its machine, and every answer must still hold.
 * CLOCHE_SEED replays a random run, CLOCHE_FAULT_RUNS makes more of them.
 */
import { MachinePhase } from "@cloche/protocol/host";
import { Code } from "@connectrpc/connect";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { HostMethod } from "../testing/fake-host.ts";
import type { Answer } from "../testing/gateway-fixture.ts";
import { World } from "../testing/world.ts";

interface Scenario {
  name: string;
  /** Prepares the world for the request; returns the id of the request's sandbox. */
  prepare(world: World): Promise<string>;
  method: string;
  body(id: string): object;
  /** Makes the host refuse. */
  spoil?(world: World): void;
  /** States the sandbox may be in at the end, when the request was answered and when it was not (or not fully). */
  answered: string[];
  unanswered: string[];
  /** Checks further conditions. */
  check?(world: World, id: string): void;
  /** Checks conditions of all sandboxes but the prepared one. */
  always?(made: readonly SandboxRecord[]): void;
}

/** All sandboxes of a group have the same state; if they run, there are three. */
function allOrNone(made: readonly SandboxRecord[]): void {
  expect(new Set(made.map(({ state }) => state)).size).toBeLessThanOrEqual(1);
  if (made.some(({ state }) => state === R)) expect(made).toHaveLength(3);
}

const running = async (world: World): Promise<string> => (await world.call("CreateSandbox")).body.sandbox.id;
const suspended = async (world: World): Promise<string> => {
  const id = await running(world);
  await world.call("SuspendSandbox", { id });
  await world.settle();
  return id;
};
const nothing = async (): Promise<string> => "";
const ofId = (id: string) => ({ id });

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";
const E = "SANDBOX_STATE_ERROR";
const gone = "not_found";

const scenarios: Scenario[] = [
  {
    name: "create",
    prepare: nothing,
    method: "CreateSandbox",
    body: () => ({}),
    answered: [R],
    unanswered: [R, gone],
  },
  {
    name: "create that the host refuses",
    prepare: nothing,
    method: "CreateSandbox",
    body: () => ({}),
    spoil: (world) => world.host.fault("createMachine", "before", Code.Internal, 99, "no disk"),
    answered: [E],
    unanswered: [E, gone],
  },
  {
    name: "create that breaks halfway",
    prepare: nothing,
    method: "CreateSandbox",
    body: () => ({}),
    spoil: (world) => world.host.fault("createMachine", "halfway", Code.Internal, 99, "half a machine"),
    answered: [E],
    unanswered: [E, gone],
    check: (world, id) => expect(world.host.phase(id)).toBeUndefined(),
  },
  {
    name: "create whose answers are lost, then refused",
    prepare: nothing,
    method: "CreateSandbox",
    body: () => ({}),
    spoil: (world) => world.host.fault("createMachine", "after", Code.Internal, 99, "no answer"),
    answered: [R, E],
    unanswered: [R, E, gone],
  },
  {
    name: "fork",
    prepare: running,
    method: "ForkSandbox",
    body: (id) => ({ source_sandbox_id: id }),
    answered: [R],
    unanswered: [R, gone],
  },
  {
    name: "fork of three",
    prepare: running,
    method: "ForkSandbox",
    body: (id) => ({ source_sandbox_id: id, count: 3 }),
    answered: [R],
    unanswered: [R, gone],
    always: allOrNone,
  },
  {
    name: "fork of three of which one fails",
    prepare: running,
    method: "ForkSandbox",
    body: (id) => ({ source_sandbox_id: id, count: 3 }),
    spoil: (world) => world.host.fault("forkMachine", "before", Code.Internal, 1, "one too many"),
    answered: [],
    // RUNNING: the gateway was killed before the failure was written, so the fork is tried again.
    unanswered: [R, E, gone],
    always: allOrNone,
  },
  {
    name: "fork of three that the host refuses",
    prepare: running,
    method: "ForkSandbox",
    body: (id) => ({ source_sandbox_id: id, count: 3 }),
    // The second and third machine may run already, or not yet.
    spoil: (world) => world.host.fault("forkMachine", "halfway", Code.Internal, 99, "no memory"),
    answered: [],
    unanswered: [E, gone],
    always: allOrNone,
  },
  {
    name: "suspend",
    prepare: running,
    method: "SuspendSandbox",
    body: ofId,
    answered: [S],
    unanswered: [S, R],
  },
  {
    name: "suspend without memory",
    prepare: running,
    method: "SuspendSandbox",
    body: (id) => ({ id, memory: false }),
    answered: [S],
    unanswered: [S, R],
    check: (world, id) =>
      expect(world.host.diskOnly.has(id)).toBe(world.host.phase(id) === MachinePhase.SUSPENDED),
  },
  {
    name: "suspend that the host refuses",
    prepare: running,
    method: "SuspendSandbox",
    body: ofId,
    spoil: (world) => world.host.fault("suspendMachine", "before", Code.Internal, 99, "no space"),
    answered: [R],
    unanswered: [R],
  },
  {
    name: "resume",
    prepare: suspended,
    method: "ResumeSandbox",
    body: ofId,
    answered: [R],
    unanswered: [R, S],
  },
  {
    name: "resume that the host refuses",
    prepare: suspended,
    method: "ResumeSandbox",
    body: ofId,
    spoil: (world) => world.host.fault("resumeMachine", "before", Code.ResourceExhausted, 99, "no memory"),
    answered: [S],
    unanswered: [S],
  },
  {
    name: "delete",
    prepare: running,
    method: "DeleteSandbox",
    body: ofId,
    answered: [gone],
    unanswered: [gone, R],
  },
  {
    name: "delete of a suspended one",
    prepare: suspended,
    method: "DeleteSandbox",
    body: ofId,
    answered: [gone],
    unanswered: [gone, S],
  },
  {
    name: "update",
    prepare: running,
    method: "UpdateSandbox",
    body: (id) => ({ id, name: "renamed", metadata: { entries: { a: "b" } } }),
    answered: [R],
    unanswered: [R],
  },
];

/** The sandbox the request was about: the one it made, or the one it named. */
async function subjectOf(world: World, scenario: Scenario, prepared: string): Promise<string> {
  const makes = scenario.method === "CreateSandbox" || scenario.method === "ForkSandbox";
  if (!makes) return prepared;
  const made = (await world.database.sandboxes.all()).find((one) => one.id !== prepared);
  return made?.id ?? "sbx-00000000000000000000";
}

async function stateOf(world: World, id: string): Promise<string> {
  return (await world.database.sandboxes.get(id))?.state ?? gone;
}

/** These tests run hundreds of small worlds, which must not fail because the computer is busy. */
const patient = { timeout: 180_000 };

const kills = scenarios.flatMap((scenario) =>
  (["before", "after"] as const).map((when) => ({ ...scenario, when })),
);

describe("killed at everything it does", patient, () => {
  it.each(kills)("$name, killed $when the effect", async ({ when, ...scenario }) => {
    let events = 0;
    for (let hasDied = true; hasDied; events += 1) {
      const world = await World.open();
      const id = await scenario.prepare(world);
      scenario.spoil?.(world);
      world.mortal.arm(events + 1, when);
      const answer = await world.callUnlessKilled(scenario.method, scenario.body(id));
      await world.settle();
      hasDied = world.mortal.isDead;
      const where = `${when} ${world.mortal.log.at(-1)} (event ${events + 1})`;
      await world.restart();
      await world.settle();
      await world.checkTruth();
      const subject = await subjectOf(world, scenario, id);
      const state = await stateOf(world, subject);
      scenario.check?.(world, subject);
      scenario.always?.((await world.database.sandboxes.all()).filter((one) => one.id !== id));
      const isPromised = answer !== undefined && answer.status === 200;
      expect(isPromised ? scenario.answered : scenario.unanswered, where).toContain(state);
      if (isPromised) await checkAnswer(world, scenario, answer);
      await world.close();
    }
    // With fewer events the model would no longer see the gateway's effects.
    expect(events).toBeGreaterThan(4);
  });
});

/** Checks that what an answer said still holds after the next start. */
async function checkAnswer(world: World, scenario: Scenario, answer: Answer): Promise<void> {
  if (scenario.method === "UpdateSandbox") {
    const record = await world.database.sandboxes.get(answer.body.sandbox.id);
    expect(record).toMatchObject({ name: "renamed", metadata: { a: "b" } });
  }
  if (answer.body.sandbox?.domain) {
    const record = await world.database.sandboxes.get(answer.body.sandbox.id);
    expect(record?.firstRanAtMs).not.toBeNull();
  }
}

/** A caller without an answer sends the request again with the same key, and again after the next kill. */
describe("killed at everything it does, asked again with the same idempotency key", patient, () => {
  const key = { idempotency_key: "once" };
  const calls = [
    { name: "create", prepare: nothing, method: "CreateSandbox", body: () => key },
    {
      name: "fork",
      prepare: running,
      method: "ForkSandbox",
      body: (id: string) => ({ ...key, source_sandbox_id: id }),
    },
  ].flatMap((one) => (["before", "after"] as const).map((when) => ({ ...one, when })));

  it.each(calls)(
    "$name makes one sandbox, killed $when the effect",
    async ({ prepare, method, body, when }) => {
      let events = 0;
      for (let hasDied = true; hasDied; events += 1) {
        const world = await World.open();
        const id = await prepare(world);
        world.mortal.arm(events + 1, when);
        const first = await world.callUnlessKilled(method, body(id));
        hasDied = world.mortal.isDead;
        const where = `${when} ${world.mortal.log.at(-1)} (event ${events + 1})`;
        await world.restart();
        const second = await world.callPassingTime(method, body(id));
        expect(second, where).toMatchObject({ status: 200 });
        if (first?.status === 200) expect(second?.body.sandbox.id).toBe(first.body.sandbox.id);
        await world.settle();
        await world.checkTruth();
        const made = (await world.database.sandboxes.all()).filter((one) => one.id !== id);
        expect(
          made.map((one) => [one.id, one.state]),
          where,
        ).toEqual([[second?.body.sandbox.id, R]]);
        await world.close();
      }
      expect(events).toBeGreaterThan(4);
    },
  );
});

describe("every call of the host failed in turn", patient, () => {
  const uses: Record<string, HostMethod> = {
    create: "createMachine",
    fork: "forkMachine",
    "fork of three": "forkMachine",
    suspend: "suspendMachine",
    resume: "resumeMachine",
    delete: "destroyMachine",
    "delete of a suspended one": "destroyMachine",
    "suspend without memory": "suspendMachine",
  };
  const codes = [Code.Unavailable, Code.Internal, Code.FailedPrecondition];
  const faults = (["before", "after"] as const).flatMap((point) =>
    codes.flatMap((code) =>
      [1, 6].flatMap((times) => [0, 6].map((blindTimes) => ({ point, code, times, blindTimes }))),
    ),
  );

  it.each(Object.entries(uses))("%s by %s", async (name, method) => {
    const scenario = scenarios.find((one) => one.name === name);
    if (scenario === undefined) throw new Error(`no scenario ${name}`);
    for (const { point, code, times, blindTimes } of faults) {
      const world = await World.open();
      const id = await scenario.prepare(world);
      world.host.fault(method, point, code, times);
      // The gateway cannot read the machine's phase either.
      if (blindTimes > 0) world.host.fault("getMachine", "before", Code.Unavailable, blindTimes);
      await world.callPassingTime(scenario.method, scenario.body(id));
      await world.settle();
      await world.checkTruth();
      scenario.always?.((await world.database.sandboxes.all()).filter((one) => one.id !== id));
      await world.close();
    }
  });
});

describe("random lives", () => {
  const seed = Number(process.env["CLOCHE_SEED"] ?? Date.now() % 2 ** 31);
  const runs = Number(process.env["CLOCHE_FAULT_RUNS"] ?? 12);
  const slot = fc.integer({ min: 0, max: 3 });
  const step = fc.oneof(
    { weight: 4, arbitrary: fc.record({ do: fc.constant("create" as const) }) },
    {
      weight: 12,
      arbitrary: fc.record({
        do: fc.constantFrom("suspend", "resume", "fork", "forks", "delete", "update"),
        slot,
      }),
    },
    {
      weight: 4,
      arbitrary: fc.record({
        do: fc.constant("fault" as const),
        method: fc.constantFrom<HostMethod[]>(
          "createMachine",
          "forkMachine",
          "suspendMachine",
          "resumeMachine",
          "destroyMachine",
          "getMachine",
          "listMachines",
        ),
        point: fc.constantFrom("before" as const, "halfway" as const, "after" as const),
        code: fc.constantFrom(Code.Unavailable, Code.Internal, Code.FailedPrecondition, Code.Aborted),
        times: fc.integer({ min: 1, max: 6 }),
      }),
    },
    { weight: 2, arbitrary: fc.record({ do: fc.constantFrom("crash", "idle"), slot }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant("reboot" as const) }) },
    {
      weight: 3,
      arbitrary: fc.record({ do: fc.constant("kill" as const), after: fc.integer({ min: 1, max: 30 }) }),
    },
    {
      weight: 2,
      arbitrary: fc.record({ do: fc.constant("wait" as const), ms: fc.integer({ min: 1, max: 70_000 }) }),
    },
  );
  type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

  async function act(world: World, one: Step): Promise<void> {
    const ids = (
      await world.database.sandboxes.list({ teamId: await teamOf(world), states: [], metadata: {} })
    ).map((r) => r.id);
    const idAt = (index: number): string =>
      ids[index % Math.max(1, ids.length)] ?? "sbx-00000000000000000000";
    const request = async (method: string, body: object): Promise<void> => {
      const answer = await world.callPassingTime(method, body);
      // A group answers with the host's first failure, which may be a 500.
      const isGroup = "count" in body;
      if (!isGroup) expect(answer?.status, `${method} ${JSON.stringify(body)}`).not.toBe(500);
    };
    switch (one.do) {
      case "create":
        return await request("CreateSandbox", { idle_suspend_seconds: 60, auto_resume: true });
      case "suspend":
        return await request("SuspendSandbox", { id: idAt(one.slot) });
      case "resume":
        return await request("ResumeSandbox", { id: idAt(one.slot) });
      case "fork":
        return await request("ForkSandbox", { source_sandbox_id: idAt(one.slot) });
      case "forks":
        return await request("ForkSandbox", { source_sandbox_id: idAt(one.slot), count: 2 });
      case "delete":
        return await request("DeleteSandbox", { id: idAt(one.slot) });
      case "update":
        return await request("UpdateSandbox", { id: idAt(one.slot), name: "x" });
      case "fault":
        return world.host.fault(one.method, one.point, one.code, one.times);
      case "crash":
        return world.host.machines.has(idAt(one.slot))
          ? world.host.crash(idAt(one.slot), "crashed")
          : undefined;
      case "idle":
        return world.host.reportIdle(idAt(one.slot));
      case "reboot":
        return world.host.reboot();
      case "kill": {
        world.mortal.arm(one.after, "before");
        await request("ListSandboxes", {});
        return await world.restart();
      }
      case "wait":
        return await world.clock.advance(one.ms);
    }
  }

  it(`end in the truth, seed ${seed}`, { timeout: runs * 12_000 }, async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (steps) => {
        const world = await World.open();
        try {
          for (const one of steps) await act(world, one);
          world.host.clearFaults();
          await world.restart();
          await world.settle();
          await world.checkTruth();
        } finally {
          await world.close();
        }
      }),
      {
        seed,
        numRuns: runs,
        interruptAfterTimeLimit: runs * 10_000,
        markInterruptAsFailure: true,
      },
    );
  });

  const teamOf = async (world: World): Promise<string> => (await world.database.teams.all())[0]?.id ?? "";
});
