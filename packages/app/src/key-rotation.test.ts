import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { FakeClock } from "@cloche/base/testing";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { KeyRotation } from "./key-rotation.ts";
import { homeSigningKeys, signingKeyFolder } from "./setup/signing-keys.ts";

const lifetimeSeconds = 100;
let home: string;
let clock: FakeClock;
let used: string[][];
let failure: Error | undefined;
let failures: number;

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-rotation-"));
  clock = new FakeClock();
  used = [];
  failure = undefined;
  failures = 0;
  await rotation().current();
});
afterEach(() => rm(home, { recursive: true, force: true }));

const kids = async (): Promise<string[]> => (await homeSigningKeys(home).list()).map(({ kid }) => kid);
const rotation = (store = homeSigningKeys(home)): KeyRotation =>
  new KeyRotation({
    store,
    tokenLifetimeSeconds: lifetimeSeconds,
    clock,
    log: silentLog,
  });
/** Polls the value while time passes: the files are read in real time. */
const inTime = <Value>(value: () => Value) =>
  expect.poll(async () => {
    await clock.advance(30_000);
    return await value();
  });
async function started(): Promise<KeyRotation> {
  const one = rotation();
  await one.current();
  one.start(async (keys) => {
    failures += failure === undefined ? 0 : 1;
    if (failure !== undefined) throw failure;
    used.push(keys.map(({ kid }) => kid));
  });
  await clock.advance(0);
  return one;
}

describe("KeyRotation", () => {
  it("makes the first key once", async () => {
    const made = await kids();
    expect(made).toHaveLength(1);
    expect((await rotation().current()).map(({ kid }) => kid)).toEqual(made);
  });

  it("signs with the new key, and removes the old when the last token of it has expired", async () => {
    const [old] = await kids();
    const one = await started();
    expect(used).toEqual([]);
    const { kid, retiring } = await one.rotate();
    expect(used).toEqual([[kid, old]]);
    expect(await kids()).toEqual([kid, old]);
    expect(retiring).toEqual([{ kid: old, atMs: clock.nowMs() + 110_000 }]);
    await one.close();

    // A service that starts anew in between keeps both, and the time.
    await clock.advance(60_000);
    const next = await started();
    expect(await kids()).toEqual([kid, old]);
    await next.close();
    await clock.advance(50_000);
    const last = await started();
    await expect.poll(() => used.at(-1)).toEqual([kid]);
    await expect.poll(() => readdir(signingKeyFolder(home))).toEqual([`${kid}.pem`]);
    await last.close();
  });

  it("removes it by itself while the service runs, and tries again where that fails", async () => {
    const one = await started();
    const { kid } = await one.rotate();
    failure = new Error("the host is away");
    await inTime(() => failures).toBeGreaterThan(1);
    expect(await kids()).toHaveLength(2);
    failure = undefined;
    await inTime(kids).toEqual([kid]);
    await one.close();
  });

  it("writes down when a key ends that has no note, as after a crash in a rotation", async () => {
    const { kid } = await homeSigningKeys(home).add(clock.nowMs(), 0);
    const one = await started();
    await expect
      .poll(async () => (await homeSigningKeys(home).list())[1]?.retiresAtMs)
      .toBe(clock.nowMs() + 110_000);
    await inTime(kids).toEqual([kid]);
    await one.close();
  });

  it("leaves everything as it was when the others cannot be told", async () => {
    const before = await readdir(signingKeyFolder(home));
    const one = await started();
    failure = new Error("the host is away");
    await expect(one.rotate()).rejects.toThrow("the host is away");
    expect(await readdir(signingKeyFolder(home))).toEqual(before);
    await one.close();
  });

  it("keeps a key that signs where only the end of the older one cannot be written down", async () => {
    const [old] = await kids();
    let isFull = true;
    const store = homeSigningKeys(home);
    const retire = async (kid: string, atMs: number): Promise<void> => {
      if (isFull) throw new Error("no space left on device");
      await store.retire?.(kid, atMs);
    };
    const one = rotation({ ...store, retire });
    await one.current();
    one.start(async (keys) => void used.push(keys.map(({ kid }) => kid)));
    const { kid, retiring } = await one.rotate();
    expect(used).toEqual([[kid, old]]);
    expect(await kids()).toEqual([kid, old]);
    expect(retiring).toEqual([{ kid: old, atMs: clock.nowMs() + 110_000 }]);
    isFull = false;
    await inTime(kids).toEqual([kid]);
    await one.close();
  });

  it("orders keys of one second as they were made", async () => {
    const one = await started();
    const made = [(await kids())[0] ?? ""];
    for (let i = 0; i < 3; i += 1) made.unshift((await one.rotate()).kid);
    expect(await kids()).toEqual(made);
    await one.close();
  });
});
