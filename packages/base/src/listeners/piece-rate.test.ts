import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { PieceRate } from "./piece-rate.ts";

test("after many pieces the others wait until their time is over, first come first served", async () => {
  const rate = new PieceRate(10);
  const done: string[] = [];
  const ask = (name: string, pieces: number): void => {
    const go = (): void => {
      done.push(name);
      rate.spend(pieces);
    };
    if (rate.mayBegin(go)) go();
  };
  ask("a", 6);
  ask("b", 1_000);
  for (const name of ["c", "d", "e"]) ask(name, 300);
  expect(done).toEqual(["a", "b"]);
  const beganMs = performance.now();
  while (done.length < 5) await sleep(1);
  expect(done).toEqual(["a", "b", "c", "d", "e"]);
  expect(performance.now() - beganMs).toBeGreaterThan(150);
});
