import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { CpuClock } from "../cgroup.ts";
import { type Fast, FastPaths, Sustained } from "./fast-paths.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test("works once it did so without a rest, and rests once it does so on the whole", () => {
  const work = new Sustained();
  const notes = (share: number, looks: number): unknown[] =>
    Array.from({ length: looks }, () => work.note(share, 25)).filter((one) => one !== undefined);
  expect(work.note(0.9, 25), "what it was before is not known").toBe("resting");
  expect(notes(0.9, 1)).toEqual([]);
  expect(notes(0.4, 1)).toEqual([]);
  expect(notes(0.9, 2), "it rested in between").toEqual([]);
  expect(notes(0.9, 1)).toEqual(["working"]);
  expect(notes(0, 5)).toEqual([]);
  expect(notes(0.9, 10)).toEqual([]);
  expect(notes(0, 10)).toEqual(["resting"]);
  // Looked at late, it counts for as long as it was.
  expect(work.note(0.6, 80)).toBe("working");
  expect(work.note(0, 300)).toBe("resting");
});

test("four processors' work is not remembered for longer than that of one", () => {
  const [one, four] = [1, 4].map((share) => {
    const work = new Sustained();
    for (let i = 0; i < 40; i += 1) work.note(share, 25);
    let looks = 0;
    while (work.note(0, 25) !== "resting") looks += 1;
    return looks;
  });
  expect(four).toBe(one);
});

test("commands that come and go are not work that goes on, also where some did before", () => {
  const work = new Sustained();
  const comeAndGo = (): unknown[] =>
    Array.from({ length: 400 }, (_, i) => work.note(i % 4 === 0 ? 1 : 0.1, 25));
  expect(comeAndGo().filter((said) => said !== undefined)).toEqual(["resting"]);
  for (let i = 0; i < 80; i += 1) work.note(1, 25);
  expect(comeAndGo().filter((said) => said !== undefined)).toEqual(["resting"]);
});

/** A group whose processor time the test says. */
function group(): { use(ms: number): void; gone(): void; fast: Fast; said: boolean[]; closed(): number } {
  let usedMs = 0;
  let isGone = false;
  let closed = 0;
  const said: boolean[] = [];
  const clock = {
    readMs: () => (isGone ? undefined : usedMs),
    close: () => {
      closed += 1;
    },
  } as unknown as CpuClock;
  const allowFastPath = async (allowed: boolean): Promise<void> => {
    said.push(allowed);
  };
  return {
    use: (ms) => {
      usedMs += ms;
    },
    gone: () => {
      isGone = true;
    },
    fast: { cgroup: { openCpuClock: () => clock }, allowFastPath },
    said,
    closed: () => closed,
  };
}

function work(on: ReturnType<typeof group>, forMs: number, share: number): void {
  for (let ms = 0; ms < forMs; ms += 25) {
    on.use(25 * share);
    vi.advanceTimersByTime(25);
  }
}

test("a sandbox that works has it, one that rests has not, and none that is not watched is looked at", () => {
  const paths = new FastPaths(silentLog);
  const [busy, idle] = [group(), group()];
  paths.watch("busy", busy.fast);
  paths.watch("idle", idle.fast);
  work(busy, 1_000, 0.7);
  expect([busy.said, idle.said]).toEqual([[false, true], [false]]);
  // Watched already: it goes on as it was.
  paths.watch("busy", busy.fast);
  work(busy, 1_000, 0.05);
  expect(busy.said).toEqual([false, true, false]);
  paths.forget("busy");
  work(busy, 1_000, 1);
  expect([busy.said.length, busy.closed(), idle.closed()]).toEqual([3, 1, 0]);
  idle.gone();
  vi.advanceTimersByTime(25);
  expect([idle.closed(), vi.getTimerCount()]).toEqual([1, 0]);
  // Under the same id another one.
  paths.watch("busy", group().fast);
  expect(vi.getTimerCount()).toBe(1);
  paths.close();
  expect(vi.getTimerCount()).toBe(0);
});

test("reads processor time of both kinds of groups, until they are gone", () => {
  const folder = mkdtempSync(join(tmpdir(), "cloche-cpu-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "usage");
  for (const [version, texts] of [
    [1, ["1500000\n", "27000000000\n"]],
    [2, ["usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n", "usage_usec 27000000\nuser_usec 1\n"]],
  ] as const) {
    writeFileSync(file, texts[0]);
    const clock = new CpuClock(file, version);
    expect(clock.readMs()).toBe(1.5);
    writeFileSync(file, texts[1]);
    expect(clock.readMs()).toBe(27_000);
    clock.close();
    expect(clock.readMs()).toBeUndefined();
  }
});
