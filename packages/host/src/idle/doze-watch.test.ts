import { SerialQueue, silentLog } from "@cloche/base";
import { describe, expect, it } from "vitest";
import { type Activity, Doze } from "../machines/doze.ts";
import { DozeWatch } from "./doze-watch.ts";
import type { Agents } from "../agent-calls/agents.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";

/**
 * One machine whose agent answers what the test says, on a clock that the test moves; and others that an operation keeps awake for
 * ever.
 */
function world(afterSeconds: number) {
  const state = {
    nowMs: 1_000_000,
    asked: 0,
    canFreeze: true,
    activity: {
      lastActivityUnixMs: 1_000_000,
      runningExecs: 0,
      openRequests: 0,
      cpuMs: 0,
      processes: 0,
      activeServices: 0,
    } as Activity,
    record: { id: "sbx-a", phase: "running", runtime: "gvisor", epoch: 1 } as MachineRecord,
    others: [] as MachineRecord[],
  };
  const doze = new Doze({ freeze: async () => undefined });
  const queue = new SerialQueue();
  const driver = () => (state.canFreeze ? { freezer: { freeze: async () => undefined } } : {});
  const clock = {
    nowMs: () => state.nowMs,
    monotonicMs: () => state.nowMs,
    sleep: () => new Promise<void>(() => undefined),
  };
  const agent = {
    getActivity: async () => {
      state.asked += 1;
      return state.activity;
    },
  };
  const find = (id: string) => (id === state.record.id ? state.record : undefined);
  const machines = { doze, find, all: () => [state.record, ...state.others] } as unknown as Machines;
  const agents = { of: () => agent, ofDozing: () => agent } as unknown as Agents;
  const drivers = { find: driver } as unknown as Drivers;
  const parts = { machines, queue, agents, drivers, clock, log: silentLog };
  const watch = new DozeWatch(parts, afterSeconds * 1_000, 1);
  /** Lets time pass, with two looks a second. */
  const pass = async (seconds: number): Promise<void> => {
    for (let i = 0; i < seconds * 2; i += 1) {
      state.nowMs += 500;
      await watch.check();
    }
  };
  return { state, doze, queue, pass, announced: () => doze.isAnnounced(state.record.id) };
}

describe("DozeWatch", () => {
  it("announces a quiet machine once its time has passed, and anew after as long when it was roused", async () => {
    const { state, doze, pass, announced } = world(4);
    await pass(4);
    expect(announced()).toBe(false);
    await pass(1);
    expect(announced()).toBe(true);
    await doze.rouse(state.record.id);
    await pass(3);
    expect(announced()).toBe(false);
    await pass(2);
    expect(announced()).toBe(true);
  });

  it("freezes it at once", async () => {
    const { doze, pass, announced } = world(4);
    await pass(4);
    expect([announced(), doze.dozing]).toEqual([false, 0]);
    await pass(1);
    expect([announced(), doze.dozing]).toEqual([true, 1]);
  });

  it("counts from the last activity that the agent tells of", async () => {
    const { state, pass, announced } = world(4);
    await pass(3);
    state.activity = { ...state.activity, lastActivityUnixMs: state.nowMs };
    await pass(3.5);
    expect(announced()).toBe(false);
    await pass(1.5);
    expect(announced()).toBe(true);
  });

  it("waits for a quarter of a second only where many are awake, and no shorter for what works", async () => {
    const { state, queue, doze, pass, announced } = world(4);
    const operation = Promise.withResolvers<void>();
    const awake = (count: number): void => {
      state.others = Array.from({ length: count }, (_, i) => ({ ...state.record, id: `sbx-${i}` }));
      for (const { id } of state.others) void queue.run(id, () => operation.promise);
    };
    awake(5);
    await pass(2);
    expect(announced()).toBe(false);
    awake(6);
    await pass(0.5);
    expect(announced()).toBe(true);
    await doze.rouse(state.record.id);
    state.activity = { ...state.activity, runningExecs: 1 };
    await pass(300);
    expect(state.asked).toBeLessThan(20);
    operation.resolve();
    await queue.drain();
  });

  it.each(["runningExecs", "openRequests", "processes", "activeServices"] as const)(
    "never announces a machine with %s, and asks it ever more rarely",
    async (what) => {
      const { state, pass, announced } = world(4);
      state.activity = { ...state.activity, [what]: 1 };
      await pass(300);
      expect(announced()).toBe(false);
      expect(state.asked).toBeLessThan(15);
      state.activity = { ...state.activity, [what]: 0 };
      await pass(31);
      expect(announced()).toBe(true);
    },
  );

  it("leaves alone what does not run, what cannot be frozen and what an operation has", async () => {
    const { state, queue, pass } = world(4);
    const operation = Promise.withResolvers<void>();
    void queue.run(state.record.id, () => operation.promise);
    await pass(20);
    operation.resolve();
    await queue.drain();
    state.record = { ...state.record, phase: "suspended" };
    await pass(20);
    state.record = { ...state.record, phase: "running" };
    state.canFreeze = false;
    await pass(20);
    expect(state.asked).toBe(0);
  });
});
