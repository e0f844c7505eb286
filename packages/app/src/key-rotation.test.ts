import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLog } from "@cloche/base";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { KeyRotation } from "./key-rotation.ts";
import { ensureSigningKeys, readSigningKeys, signingKeyFolder } from "./setup/signing-keys.ts";

const lifetimeSeconds = 100;
let home: string;
let nowMs: number;
let used: string[][];
let failure: Error | undefined;

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  home = await mkdtemp(join(tmpdir(), "cloche-rotation-"));
  nowMs = 1_767_225_600_000;
  used = [];
  failure = undefined;
  await ensureSigningKeys(home, nowMs);
});
afterEach(async () => {
  vi.useRealTimers();
  await rm(home, { recursive: true, force: true });
});

const kids = async (): Promise<string[]> => (await readSigningKeys(home)).map(({ kid }) => kid);
const rotation = (): KeyRotation =>
  new KeyRotation({
    home,
    tokenLifetimeSeconds: lifetimeSeconds,
    use: async (keys) => {
      if (failure !== undefined) throw failure;
      used.push(keys.map(({ kid }) => kid));
    },
    clock: { nowMs: () => nowMs, monotonicMs: () => nowMs, sleep: async () => undefined },
    log: createLog({ level: "silent" }),
  });

describe("KeyRotation", () => {
  it("signs with the new key, and removes the old when the last token of it has expired", async () => {
    const [old] = await kids();
    const one = rotation();
    await one.start();
    expect(used).toEqual([]);
    const { kid, retiring } = await one.rotate();
    expect(used).toEqual([[kid, old]]);
    expect(await kids()).toEqual([kid, old]);
    expect(retiring).toEqual([{ kid: old, atMs: nowMs + 110_000 }]);
    await one.close();

    // A service that starts anew in between keeps both, and the time.
    nowMs += 60_000;
    const next = rotation();
    await next.start();
    expect(await kids()).toEqual([kid, old]);
    await next.close();
    nowMs += 50_000;
    const last = rotation();
    await last.start();
    expect(used.at(-1)).toEqual([kid]);
    expect(await readdir(signingKeyFolder(home))).toEqual([`${kid}.pem`]);
    await last.close();
  });

  it("removes it by itself while the service runs, and tries again where that fails", async () => {
    const one = rotation();
    const { kid } = await one.rotate();
    nowMs += 110_000;
    failure = new Error("the host is away");
    await vi.advanceTimersByTimeAsync(110_000);
    await vi.waitFor(async () => expect(vi.getTimerCount()).toBe(1));
    expect(await kids()).toHaveLength(2);
    failure = undefined;
    await vi.advanceTimersByTimeAsync(60_000);
    await vi.waitFor(async () => expect(await kids()).toEqual([kid]));
    await one.close();
  });

  it("leaves everything as it was when the others cannot be told", async () => {
    const before = await kids();
    failure = new Error("the host is away");
    const one = rotation();
    await expect(one.rotate()).rejects.toThrow("the host is away");
    expect(await kids()).toEqual(before);
    await one.close();
  });

  it("orders keys of one second as they were made", async () => {
    const one = rotation();
    const made = [(await kids())[0] ?? ""];
    for (let i = 0; i < 3; i += 1) made.unshift((await one.rotate()).kid);
    expect(await kids()).toEqual(made);
    await one.close();
  });
});
