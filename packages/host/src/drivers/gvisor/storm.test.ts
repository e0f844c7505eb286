import { describe, expect, it } from "vitest";
import {
  crowdedBy,
  crowdOf,
  isBusy,
  guardIsLate,
  type Load,
  memoryForecast,
  type SentryProcess,
  stormOf,
} from "./storm.ts";

const bytesPerMib = 1024 * 1024;
const agent = { pid: 1, ppid: 0, pgid: 1, cmd: "MainThread" };
const spawner = { pid: 6, ppid: 1, pgid: 1, cmd: "cloche-files" };
const initScript = { pid: 7, ppid: 6, pgid: 7, cmd: "cloche-init" };
const ours = [agent, spawner, initScript];
const launcher = (pid: number): SentryProcess => ({ pid, ppid: 7, pgid: 7, cmd: "cloche-waiting" });
const user = (pid: number, ppid: number, cmd: string, pgid = pid): SentryProcess => ({
  pid,
  ppid,
  pgid,
  cmd,
});
const many = (count: number, from: number, make: (pid: number) => SentryProcess): SentryProcess[] =>
  Array.from({ length: count }, (_, i) => make(from + i));

const waits = user(21, 20, "sleep");
const counter = user(22, 7, "sh");
const quiet = [...ours, launcher(20), waits, counter];

describe("stormOf", () => {
  const bomb = user(31, 30, "sh");
  const cases: Record<string, { processes: SentryProcess[]; killed: number }> = {
    "nothing but what is ours": { processes: ours, killed: 0 },
    "a quiet machine": { processes: quiet, killed: 0 },
    "an exec whose children stay below it": {
      processes: [
        ...quiet,
        launcher(30),
        bomb,
        ...many(100, 100, (pid) => user(pid, pid === 100 ? 31 : pid - 1, "sh", 31)),
      ],
      killed: 101,
    },
    "an exec whose orphans have sessions of their own": {
      processes: [...quiet, launcher(30), ...many(100, 100, (pid) => user(pid, 30, "python3"))],
      killed: 100,
    },
    "orphans of one name that outlived their exec": {
      processes: [...quiet, ...many(100, 100, (pid) => user(pid, 7, "python3"))],
      killed: 100,
    },
    "orphans that call themselves as a launcher does": {
      processes: [...quiet, ...many(100, 100, (pid) => user(pid, 7, "cloche-waiting"))],
      killed: 100,
    },
    "as many as a crowd has at most": {
      processes: [...quiet, launcher(30), ...many(crowdedBy, 100, (pid) => user(pid, 30, "sh"))],
      killed: 0,
    },
    "two programs of the same size": {
      processes: [
        ...ours,
        launcher(30),
        launcher(40),
        ...many(100, 100, (pid) => user(pid, 30, "sh")),
        ...many(100, 300, (pid) => user(pid, 40, "sh")),
      ],
      killed: 0,
    },
    "many launchers": { processes: [...quiet, ...many(100, 100, launcher)], killed: 0 },
    "processes that lead to nobody, or in a circle": {
      processes: [
        ...quiet,
        ...many(100, 100, (pid) => user(pid, 99, "sh")),
        user(400, 401, "sh"),
        user(401, 400, "sh"),
      ],
      killed: 0,
    },
  };
  it.each(Object.entries(cases))("%s", (_name, { processes, killed }) => {
    const pids = stormOf(processes, crowdedBy)?.pids ?? [];
    expect(pids).toHaveLength(killed);
    for (const spared of [...ours, launcher(20), waits, counter]) expect(pids).not.toContain(spared.pid);
  });

  it("signals a process group as one only where nobody else is in it", () => {
    const stranger = user(50, 7, "tail", 32);
    const inGroups = many(90, 100, (pid) => user(pid, 31, "sh", pid < 150 ? 31 : 32));
    const storm = stormOf([...ours, launcher(30), bomb, stranger, ...inGroups], crowdedBy);
    expect(storm?.groups).toEqual([31]);
    expect(storm?.alone).toEqual(many(40, 150, (pid) => user(pid, 31, "sh")).map(({ pid }) => pid));
  });

  it("tells the commands of most of them", () => {
    const processes = [
      ...ours,
      launcher(30),
      bomb,
      ...many(80, 100, (pid) => user(pid, 31, pid < 110 ? "a" : "b")),
    ];
    expect(stormOf(processes, crowdedBy)?.commands).toEqual({ b: 70, a: 10, sh: 1 });
  });
});

describe("crowdOf", () => {
  it.each([
    [256, 0, 128],
    [256, 100, 64],
    [1_024, 0, 512],
    [1_024, 100, 256],
    [4_096, 0, 512],
    [4_096, 100, 256],
  ])("of %i processes, with %i tasks started meanwhile, is %i", (limit, started, crowd) => {
    expect(crowdOf(limit, started)).toBe(crowd);
  });
});

describe("a load", () => {
  const memory = { promised: 1_024 * bytesPerMib, limit: 1_408 * bytesPerMib };
  const at = (ms: number, mib: number, tasks: number): Load => ({
    atMs: ms,
    tasks,
    cpuMs: 0,
    memoryBytes: mib * bytesPerMib,
  });
  it.each([
    ["fills the memory", at(0, 960, 300), at(200, 1_040, 300), "now"],
    ["will have filled it", at(0, 720, 300), at(200, 800, 300), "soon"],
    ["still has all that was promised", at(0, 900, 300), at(200, 1_000, 300), "soon"],
    ["grows slowly", at(0, 1_036, 300), at(200, 1_040, 300), "enough"],
    ["shrinks", at(0, 1_300, 300), at(200, 1_200, 300), "enough"],
  ])("that %s has memory: %#", (_what, before, now, expected) => {
    expect(memoryForecast(before, now, memory)).toBe(expected);
  });

  it.each([
    ["tasks start", 340, 0, true],
    ["few tasks start and the agent answers", 302, 0, false],
    ["the agent owes an answer", 300, 200, true],
    ["the agent was asked just now", 300, 100, false],
  ])("leaves the guard no turn where %s: %#", (_what, tasks, silentMs, late) => {
    expect(guardIsLate(at(0, 1_000, 300), at(200, 1_100, tasks), silentMs)).toBe(late);
  });

  it("is busy from a tenth of a processor on", () => {
    const cpu = (ms: number, cpuMs: number): Load => ({ ...at(ms, 100, 300), cpuMs });
    expect([isBusy(cpu(0, 50), cpu(200, 69)), isBusy(cpu(0, 50), cpu(200, 70))]).toEqual([false, true]);
  });
});
