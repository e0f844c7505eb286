import type { ReadyIdentity } from "../../driver.ts";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { MemoryHeadroom } from "./memory-headroom.ts";
import { ReadyUnits, type ReadyUnitsOptions } from "./ready-units.ts";
import type { Unit } from "../unit.ts";

interface FakeUnit {
  number: number;
  /** Undefined: the default shape. */
  memoryMb: number | undefined;
  frozen: boolean;
  alive: boolean;
  isAlive(): Promise<boolean>;
}

let made: FakeUnit[] = [];
let destroyed: FakeUnit[] = [];
let left: MemoryHeadroom = "plenty";
const asFake = (unit: Unit | undefined): FakeUnit => unit as unknown as FakeUnit;

function readyUnits(options: Partial<ReadyUnitsOptions> = {}): ReadyUnits {
  return new ReadyUnits({
    count: 2,
    most: 10,
    memoryHeadroom: () => left,
    async makeBlank(shape) {
      const unit: FakeUnit = {
        number: made.length + 1,
        memoryMb: shape?.memoryMb,
        frozen: false,
        alive: true,
        isAlive: async () => unit.alive,
      };
      made.push(unit);
      return unit as unknown as Unit;
    },
    async freeze(unit, frozen) {
      asFake(unit).frozen = frozen;
    },
    warm: async (unit) => ({ unit, identity: identityOf(asFake(unit).number) }),
    async destroy(unit) {
      destroyed.push(asFake(unit));
    },
    log: silentLog,
    ...options,
  });
}

const identityOf = (number: number): ReadyIdentity => ({
  sandboxId: `sbx-${number}`,
  name: `name-${number}`,
  secret: "a secret",
  assignment: "what it was told",
});

beforeEach(() => {
  vi.useFakeTimers();
  made = [];
  destroyed = [];
  left = "plenty";
});
afterEach(() => vi.useRealTimers());

const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

test("keeps as many of each kind as it is told, blanks frozen, and gives them out thawed", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  expect(made.filter(({ frozen }) => frozen)).toHaveLength(2);
  expect(asFake(await ready.takeBlank()).frozen).toBe(false);
  expect(ready.counts().blank).toBe(1);
  await pass(1_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  await ready.close();
  expect(destroyed).toHaveLength(4);
});

/** Takes `count` at once; answers how many were ready. */
const takeBlanks = async (ready: ReadyUnits, count: number): Promise<number> =>
  (await Promise.all(Array.from({ length: count }, () => ready.takeBlank()))).filter(Boolean).length;
const takeWarm = async (ready: ReadyUnits, count: number): Promise<number> =>
  (await Promise.all(Array.from({ length: count }, () => ready.takeWarm("sbx-any")))).filter(Boolean).length;

test("keeps what was asked for at once of each kind, up to the most, and gives it back in time", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  expect(await takeBlanks(ready, 12)).toBe(2);
  expect(await takeWarm(ready, 8)).toBe(2);
  expect(ready.wanted()).toEqual({ blank: 10, warm: 8 });
  await pass(1_000);
  expect(ready.counts()).toMatchObject({ blank: 10, warm: 8 });
  // Taking one does not make the pool forget the burst.
  await pass(60_000);
  expect(await takeBlanks(ready, 1)).toBe(1);
  await pass(1_000);
  expect(ready.counts()).toMatchObject({ blank: 10, warm: 8 });
  await pass(570_000);
  expect(ready.counts()).toMatchObject({ blank: 5, warm: 4 });
  await pass(600_000);
  expect(ready.counts()).toMatchObject({ blank: 3, warm: 2 });
  await pass(600_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  expect(destroyed).toHaveLength(14);
  await ready.close();
  expect(destroyed).toHaveLength(18);
});

test("a blank that is taken where no warm one is left makes it keep more warm ones, not more blanks", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  expect(await takeWarm(ready, 6)).toBe(2);
  await Promise.all(Array.from({ length: 4 }, () => ready.takeBlank(true)));
  await pass(1_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 6 });
  await ready.close();
});

test("keeps no more than the least where the host is short of memory, and makes no more where it has just enough", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  await takeWarm(ready, 8);
  await pass(11_000);
  expect(ready.counts().warm).toBe(8);
  left = "enough";
  await takeWarm(ready, 3);
  await pass(60_000);
  expect(ready.counts().warm).toBe(5);
  left = "short";
  await pass(60_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  expect(destroyed).toHaveLength(3);
  left = "plenty";
  await takeWarm(ready, 1);
  await pass(1_000);
  expect(ready.counts().warm).toBe(8);
  await ready.close();
});

test("refills when nobody has taken one for a while, and meanwhile where more than half are gone", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  await takeWarm(ready, 8);
  await pass(60_000);
  expect(ready.counts().warm).toBe(8);
  const perSecond = 5;
  for (let taken = 1; taken <= 4; taken += 1) {
    await takeWarm(ready, 1);
    await pass(1_000 / perSecond);
    expect(ready.counts().warm).toBe(8 - taken);
  }
  await takeWarm(ready, 1);
  await pass(1_000 / perSecond);
  await takeWarm(ready, 1);
  await pass(1_000 / perSecond);
  expect(ready.counts().warm).toBeGreaterThan(3);
  await ready.close();
});

test("one that is taken while others are made does not put off the refilling after it", async () => {
  const makingMs = 1_000;
  const ready = readyUnits({
    count: 1,
    most: 1,
    async warm(unit) {
      await new Promise((resolve) => setTimeout(resolve, makingMs));
      return { unit, identity: identityOf(asFake(unit).number) };
    },
  });
  ready.start();
  await pass(10 + makingMs);
  const shape = { cpus: 1, memoryMb: 256 };
  for (let times = 0; times < 2; times += 1) await ready.takeShaped(shape);
  await takeWarm(ready, 1);
  // Shortly before the end of the refill, which begins after 0.4 s.
  await pass(300 + makingMs);
  await ready.takeShaped(shape);
  await pass(500);
  // With a shaped blank the pool is above its least, so its next look would be in half a minute.
  expect(ready.counts()).toEqual({ blank: 1, warm: 1, shaped: 1 });
  await takeWarm(ready, 1);
  await pass(500 + makingMs);
  expect(ready.counts().warm).toBe(1);
  await ready.close();
});

test("makes several together for the next burst, and the fewest of each kind one by one", async () => {
  let [now, most] = [0, 0];
  const ready = readyUnits({
    atOnce: 3,
    warm: async (unit) => {
      now += 1;
      most = Math.max(most, now);
      await new Promise((resolve) => setTimeout(resolve, 100));
      now -= 1;
      return { unit, identity: identityOf(asFake(unit).number) };
    },
  });
  ready.start();
  await pass(1_000);
  expect([ready.counts().warm, most]).toEqual([2, 1]);
  await takeWarm(ready, 8);
  // Both of the fewest one by one, three, three.
  await pass(400 + 350);
  expect([ready.counts().warm, most]).toEqual([5, 3]);
  await pass(100);
  expect(ready.counts().warm).toBe(8);
  await pass(10_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 8 });
  await ready.close();
});

test("makes nothing ahead while a machine is made for somebody", async () => {
  const ready = readyUnits();
  ready.start();
  await pass(10);
  const making = Promise.withResolvers<void>();
  const first = ready.first(() => making.promise);
  await ready.takeWarm("sbx-any");
  await pass(5_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 1 });
  making.resolve();
  await first;
  await pass(1_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  await expect(ready.first(() => Promise.reject(new Error("no disk")))).rejects.toThrow("no disk");
  await ready.takeWarm("sbx-any");
  await pass(1_000);
  expect(ready.counts().warm).toBe(2);
  await ready.close();
});

test("one that died while it waited is skipped, one that cannot be stilled is destroyed", async () => {
  let fails = false;
  const ready = readyUnits({
    async freeze(unit, frozen) {
      if (fails) throw new Error("no freezer");
      asFake(unit).frozen = frozen;
    },
  });
  ready.start();
  await pass(10);
  const [oldest] = made;
  if (oldest !== undefined) oldest.alive = false;
  expect(asFake(await ready.takeBlank()).alive).toBe(true);
  expect(destroyed).toEqual([oldest]);
  fails = true;
  await pass(1_000);
  expect(ready.counts().blank).toBe(0);
  expect(destroyed).toHaveLength(2);
  fails = false;
  await pass(60_000);
  expect(ready.counts()).toMatchObject({ blank: 2, warm: 2 });
  await ready.close();
});

test("keeps a blank of a shape that is asked for again and again, after all else, and forgets it in time", async () => {
  const ready = readyUnits();
  const shape = { cpus: 1, memoryMb: 256 };
  ready.start();
  await pass(10);
  expect(await ready.takeShaped(shape)).toBeUndefined();
  await pass(1_000);
  expect(ready.counts().shaped).toBe(0);
  expect(await ready.takeShaped(shape)).toBeUndefined();
  const making = Promise.withResolvers<void>();
  const first = ready.first(() => making.promise);
  await pass(5_000);
  expect(ready.counts().shaped).toBe(0);
  making.resolve();
  await first;
  await pass(1_000);
  expect(ready.counts()).toEqual({ blank: 2, warm: 2, shaped: 1 });
  expect(made.at(-1)).toMatchObject({ memoryMb: 256, frozen: true });
  expect(await ready.takeShaped({ cpus: 2, memoryMb: 256 })).toBeUndefined();
  expect(asFake(await ready.takeShaped(shape))).toMatchObject({ memoryMb: 256, frozen: false });
  expect(ready.counts().shaped).toBe(0);
  await pass(1_000);
  expect(ready.counts().shaped).toBe(1);
  await pass(631_000);
  expect(ready.counts()).toEqual({ blank: 2, warm: 2, shaped: 0 });
  expect(destroyed).toEqual([made.at(-1)]);
  for (let times = 0; times < 2; times += 1) await ready.takeShaped(shape);
  await pass(1_000);
  await ready.close();
  expect(destroyed).toHaveLength(6);
});

test("keeps blanks of two shapes at most, those asked for last", async () => {
  const ready = readyUnits({ count: 1 });
  ready.start();
  await pass(10);
  for (const memoryMb of [128, 256, 512]) {
    for (let times = 0; times < 2; times += 1) await ready.takeShaped({ cpus: 1, memoryMb });
    await pass(1_000);
  }
  expect(ready.counts().shaped).toBe(2);
  expect(destroyed.map(({ memoryMb }) => memoryMb)).toEqual([128]);
  await ready.close();
});

test("gives out the warm one of that identity, else any, and tells of every change", async () => {
  const offered: string[][] = [];
  const ready = readyUnits({ offer: (all) => offered.push(all.map(({ sandboxId }) => sandboxId)) });
  ready.start();
  await pass(10);
  const [first = "", second = ""] = offered.at(-1) ?? [];
  expect((await ready.takeWarm(second))?.identity.sandboxId).toBe(second);
  expect(offered.at(-1)).toEqual([first]);
  expect((await ready.takeWarm("sbx-unknown"))?.identity.sandboxId).toBe(first);
  expect(offered.at(-1)).toEqual([]);
  await pass(1_000);
  expect(offered.at(-1)).toHaveLength(2);
  await ready.close();
  expect(offered.at(-1)).toEqual([]);
});
