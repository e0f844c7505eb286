import { type Clock, type Owner, systemClock } from "@cloche/base";
import fc from "fast-check";
import { expect, it } from "vitest";
import type { BlobStore } from "./blob-store.ts";
import { OwnerOfStore } from "./store-owner.ts";

const owner = (letter: string): Owner => ({
  installation: `ins-${letter.repeat(20)}`,
  home: `/home-${letter}`,
  host: letter,
  machine: letter,
  session: `run-${letter.repeat(20)}`,
  claimedAtMs: 1,
  seenAtMs: 1,
});

/** Each call waits `turns()` turns before it takes effect and again before it is answered. Every answered write is visible. */
function slowStore(turns: () => number): BlobStore {
  const blobs = new Map<string, Uint8Array>();
  const slowly = async <T>(effect: () => T): Promise<T> => {
    await pause(turns());
    const answer = effect();
    await pause(turns());
    return answer;
  };
  return {
    put: (key, data) => slowly(() => void blobs.set(key, data)),
    get: (key) => slowly(() => blobs.get(key)),
    delete: (key) => slowly(() => void blobs.delete(key)),
    list: (prefix) =>
      slowly(() =>
        [...blobs.keys()]
          .filter((key) => key.startsWith(prefix))
          .sort()
          .map((key) => ({ key, bytes: 1, modifiedAtMs: 1 })),
      ),
  };
}

const pause = async (turns: number): Promise<void> => {
  for (let turn = 0; turn < turns; turn += 1) await new Promise((resolve) => setImmediate(resolve));
};

const clock: Pick<Clock, "monotonicMs" | "sleep"> = { monotonicMs: () => 0, sleep: () => pause(3) };

it("exactly one of those that race wins, however their calls interleave", async () => {
  const delays = fc.array(fc.nat({ max: 12 }), { minLength: 60, maxLength: 60 });
  await fc.assert(
    fc.asyncProperty(
      delays,
      fc.shuffledSubarray(["a", "b", "c"], { minLength: 2 }),
      async (turns, letters) => {
        let at = 0;
        const store = slowStore(() => turns[at++ % turns.length] as number);
        const won = await Promise.all(
          letters.map((letter) => new OwnerOfStore(store, clock).replaceOwner(undefined, owner(letter))),
        );
        const winners = letters.filter((_, index) => won[index]);
        expect(winners).toHaveLength(1);
        expect((await new OwnerOfStore(store, clock).owner())?.host).toBe(winners[0]);
      },
    ),
    { numRuns: 300 },
  );
});

it("a claim that was held for so long that others took it for stale does not win", async () => {
  let nowMs = 0;
  const store = slowStore(() => 0);
  const slow: BlobStore = {
    put: (key, data) => store.put(key, data),
    get: (key) => store.get(key),
    delete: (key) => store.delete(key),
    list: (prefix) => {
      nowMs += 31_000;
      return store.list(prefix);
    },
  };
  const place = new OwnerOfStore(slow, { ...systemClock, monotonicMs: () => nowMs });
  expect(await place.replaceOwner(undefined, owner("a"))).toBe(false);
  expect(await place.owner()).toBeUndefined();
});
