import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { TurnWork } from "./turn-work.ts";

test("what exceeds a turn's work waits for the next, first come first served", async () => {
  const work = new TurnWork(10);
  const done: string[] = [];
  const ask = (name: string, pieces: number): void => {
    const go = (): void => {
      done.push(name);
      work.spend(pieces);
    };
    if (work.mayBegin(go)) go();
  };
  ask("a", 6);
  ask("b", 6);
  for (const name of ["c", "d", "e"]) ask(name, 6);
  expect(done).toEqual(["a", "b"]);
  await nextTurn();
  expect(done).toEqual(["a", "b", "c", "d"]);
  await nextTurn();
  expect(done).toEqual(["a", "b", "c", "d", "e"]);
});
