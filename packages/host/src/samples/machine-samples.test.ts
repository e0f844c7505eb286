import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Agents } from "../agent-calls/agents.ts";
import { Drivers } from "../drivers/drivers.ts";
import { Doze } from "../machines/doze.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { MachineSamples } from "./machine-samples.ts";
import type { Measured } from "./measure.ts";

const every = 10_000;
const startMs = 1_000_000_000;
const quiet = {
  lastActivityUnixMs: 0,
  runningExecs: 0,
  openRequests: 0,
  cpuMs: 0,
  processes: 0,
  activeServices: 0,
};

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "cloche-samples-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** Machines that use half a processor each, on a clock that the test moves. */
function world(count = 1, runsTotal?: number) {
  const state = { nowMs: startMs, measured: [] as string[], trafficAsked: 0, fails: false };
  const records = Array.from(
    { length: count },
    (_, index) =>
      ({
        id: `sbx-${index}`,
        phase: "running",
        runtime: "gvisor",
        cpus: 2,
        disk: "disk-1.ext4",
        agentHost: `10.0.0.${index}`,
        runningSinceMs: startMs,
      }) as MachineRecord,
  );
  const doze = new Doze({ freeze: async () => undefined });
  const traffic = async () => {
    state.trafficAsked += 1;
    return new Map([["10.0.0.0", { receivedBytes: 5, sentBytes: 6 }]]);
  };
  const clock = {
    nowMs: () => state.nowMs,
    monotonicMs: () => state.nowMs,
    sleep: () => new Promise<void>(() => undefined),
  };
  const machines = {
    doze,
    all: () => records,
    find: (id: string) => records.find((one) => one.id === id),
    get: (id: string) => records.find((one) => one.id === id),
    files: (record: MachineRecord) => ({ id: record.id, dir, diskImage: join(dir, record.disk) }),
  } as unknown as Machines;
  // Only `measure` uses these.
  const parts = {
    egress: { traffic },
    clock,
    log: silentLog,
    agents: {} as Agents,
    drivers: new Drivers(new Map()),
  };
  const measure = async (
    _: unknown,
    record: MachineRecord,
    atMs: number,
    links: ReadonlyMap<string, { receivedBytes: number; sentBytes: number }>,
  ): Promise<Measured> => {
    if (state.fails) throw new Error("it does not run");
    state.measured.push(record.id);
    const link = links.get(record.agentHost) ?? { receivedBytes: 0, sentBytes: 0 };
    const cpuMs = (atMs - startMs) / 2;
    return { atMs, cpuMs, memoryBytes: atMs, diskBytes: 9, processes: 3, ...link };
  };
  const samples = new MachineSamples({ ...parts, machines }, measure, runsTotal);
  const pass = async (rounds: number): Promise<void> => {
    for (let round = 0; round < rounds; round += 1) {
      state.nowMs += every;
      await samples.sample(state.nowMs);
    }
  };
  const asleep = async (id: string): Promise<void> => {
    doze.announce(id, quiet);
    await doze.freeze(id, async () => true);
  };
  return { state, records, doze, samples, pass, asleep, first: records[0] as MachineRecord };
}

describe("MachineSamples", () => {
  it("has a sample of every machine each ten seconds, with the share of its processors", async () => {
    const { samples, pass, state } = world(2);
    await pass(3);
    const history = samples.history("sbx-0");
    expect(history.map(({ atMs }) => atMs - startMs)).toEqual([every, 2 * every, 3 * every]);
    expect(history.map(({ cpuShare }) => cpuShare)).toEqual([0.25, 0.25, 0.25]);
    expect(history[2]).toMatchObject({ diskBytes: 9, processes: 3, receivedBytes: 5, sentBytes: 6 });
    expect(samples.history("sbx-1")[0]).toMatchObject({ receivedBytes: 0, sentBytes: 0 });
    // Of all machines at once.
    expect(state.trafficAsked).toBe(3);
  });

  it("keeps an hour, and forgets machines that are gone", async () => {
    const { samples, pass, records } = world(2);
    await pass(500);
    expect(samples.history("sbx-0")).toHaveLength(361 - 1);
    records.pop();
    await pass(1);
    expect(samples.history("sbx-1")).toEqual([]);
  });

  it("looks at no machine that dozes, and goes on with its samples at no cost", async () => {
    const { samples, pass, state, asleep, doze, first } = world();
    await pass(2);
    await asleep("sbx-0");
    const { size } = samples;
    state.measured.length = 0;
    await pass(100);
    const now = await samples.now(first);
    expect(state.measured).toEqual([]);
    expect(doze.activityOf("sbx-0")).toBeDefined();
    const history = samples.history("sbx-0");
    expect(history).toHaveLength(102);
    const last = { cpuShare: 0, memoryBytes: startMs + 2 * every, processes: 3 };
    expect(history.at(-1)).toMatchObject({ ...last, atMs: startMs + 102 * every });
    expect(now).toMatchObject({ ...last, atMs: state.nowMs });
    expect(samples.size).toBe(size);
    await doze.rouse("sbx-0");
    await pass(1);
    // Since the last measurement.
    expect(samples.history("sbx-0").at(-1)).toMatchObject({ cpuShare: 0.25, memoryBytes: state.nowMs });
  });

  it("survives a suspension, says then what the disk takes, and does not measure against the run before", async () => {
    const { samples, pass, state, first } = world();
    await writeFile(join(dir, "disk-1.ext4"), Buffer.alloc(10_000, 1));
    await pass(6);
    first.phase = "suspended";
    await pass(6);
    expect(samples.history("sbx-0")).toHaveLength(6);
    const now = await samples.now(first);
    expect(now).toMatchObject({ cpuShare: 0, memoryBytes: 0, receivedBytes: 0, processes: 0 });
    expect(now.diskBytes).toBeGreaterThanOrEqual(10_000);
    first.phase = "running";
    first.runningSinceMs = state.nowMs;
    // CPU time of ten minutes at half a CPU, used within ten seconds: the share is never above 1.
    await pass(1);
    expect(samples.history("sbx-0").at(-1)).toMatchObject({ cpuShare: 1 });
    await pass(1);
    expect(samples.history("sbx-0").at(-1)).toMatchObject({ cpuShare: 0.25 });
    expect(samples.history("sbx-0")).toHaveLength(8);
    first.phase = "suspended";
    await pass(400);
    expect([samples.history("sbx-0"), samples.size]).toEqual([[], 0]);
  });

  it("measures now at most once a second, and asks for a machine that runs", async () => {
    const { samples, state, first } = world();
    state.nowMs += 4_000;
    const now = await samples.now(first);
    expect(now).toMatchObject({ cpuShare: 0.25, atMs: state.nowMs });
    state.nowMs += 999;
    expect(await samples.now(first)).toBe(now);
    state.nowMs += 1;
    expect((await samples.now(first)).atMs).toBe(state.nowMs);
    expect(state.measured).toHaveLength(2);
  });

  it("has no sample of a machine that cannot be measured, and goes on after", async () => {
    const { samples, pass, state } = world();
    await pass(1);
    state.fails = true;
    await pass(2);
    state.fails = false;
    await pass(1);
    expect(samples.history("sbx-0").map(({ atMs }) => (atMs - startMs) / every)).toEqual([1, 4]);
  });

  it("takes no more memory than is bounded, however many machines there are", async () => {
    const { samples, pass } = world(20, 20 * 100);
    await pass(250);
    expect(samples.history("sbx-7")).toHaveLength(100);
    // A sample has eight numbers; at most half of the room is unused.
    expect(samples.size).toBeLessThanOrEqual(2 * 20 * 100 * 8);
    const many = world(40, 20 * 40);
    await many.pass(50);
    expect(many.samples.history("sbx-7")).toHaveLength(30);
  });
});
