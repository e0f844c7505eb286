import { describe, expect, it } from "vitest";
import { silentLog } from "@cloche/base";
import type { Agents } from "../agent-calls/agents.ts";
import { IdleWatch } from "./idle-watch.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";

/** One machine whose agent answers what the test says, on a clock that the test moves. */
function world(limitSeconds: number) {
  const state = {
    nowMs: 1_000_000,
    reported: 0,
    activity: { lastActivityUnixMs: 1_000_000, runningExecs: 0, openRequests: 0, cpuMs: 0 },
    answers: true,
    dozes: false,
    record: { id: "sbx-a", phase: "running", idleSuspendSeconds: limitSeconds, epoch: 1 } as MachineRecord,
  };
  const clock = {
    nowMs: () => state.nowMs,
    monotonicMs: () => state.nowMs,
    sleep: () => new Promise<void>(() => undefined),
  };
  const agent = {
    getActivity: async () => {
      if (!state.answers) throw new Error("no answer");
      return state.activity;
    },
  };
  const agents = { of: () => agent } as unknown as Agents;
  const machines = {
    all: () => [state.record],
    doze: { activityOf: () => (state.dozes ? state.activity : undefined) },
    reportIdle: () => {
      state.reported += 1;
    },
  } as unknown as Machines;
  const watch = new IdleWatch({ machines, agents, clock, log: silentLog });
  /** Lets time pass, with a look each second. */
  const pass = async (seconds: number): Promise<void> => {
    for (let i = 0; i < seconds; i += 1) {
      state.nowMs += 1_000;
      await watch.check();
    }
  };
  return { state, pass };
}

describe("IdleWatch", () => {
  it("reports a quiet machine once its limit has passed, and again only after as long a time", async () => {
    const { state, pass } = world(10);
    await pass(10);
    expect(state.reported).toBe(0);
    await pass(2);
    expect(state.reported).toBe(1);
    await pass(8);
    expect(state.reported).toBe(1);
    await pass(4);
    expect(state.reported).toBe(2);
  });

  it.each([
    ["a running exec", (a: ReturnType<typeof world>["state"]["activity"]) => (a.runningExecs = 1)],
    ["an open request", (a: ReturnType<typeof world>["state"]["activity"]) => (a.openRequests = 1)],
  ])("does not report a machine with %s", async (_name, busy) => {
    const { state, pass } = world(5);
    busy(state.activity);
    await pass(30);
    expect(state.reported).toBe(0);
  });

  it("takes CPU time for activity, but not that of a sleeping interpreter", async () => {
    const { state, pass } = world(5);
    for (let i = 0; i < 30; i += 1) {
      state.activity.cpuMs += 100;
      await pass(1);
    }
    expect(state.reported).toBe(0);
    for (let i = 0; i < 8; i += 1) {
      state.activity.cpuMs += 2;
      await pass(1);
    }
    expect(state.reported).toBe(1);
  });

  it("counts from the last request or traffic that the agent tells of", async () => {
    const { state, pass } = world(10);
    await pass(6);
    state.activity.lastActivityUnixMs = state.nowMs;
    await pass(9);
    expect(state.reported).toBe(0);
    await pass(4);
    expect(state.reported).toBe(1);
  });

  it("never reports a machine without a limit, one that does not run, or one whose agent is silent", async () => {
    const { state, pass } = world(0);
    await pass(20);
    state.record = { ...state.record, idleSuspendSeconds: 2, phase: "suspended" };
    await pass(20);
    state.record = { ...state.record, phase: "running" };
    state.answers = false;
    await pass(20);
    expect(state.reported).toBe(0);
  });

  it("reports one that dozes without asking it", async () => {
    const { state, pass } = world(10);
    await pass(6);
    state.answers = false;
    state.dozes = true;
    await pass(8);
    expect(state.reported).toBe(1);
  });

  it("gives a resumed machine its full time again", async () => {
    const { state, pass } = world(10);
    await pass(9);
    state.record = { ...state.record, epoch: 2 };
    state.activity.lastActivityUnixMs = 0;
    await pass(9);
    expect(state.reported).toBe(0);
    await pass(3);
    expect(state.reported).toBe(1);
  });
});
