import { expect, it } from "vitest";
import { TeamTurns } from "./team-turns.ts";

const here = new AbortController().signal;

const loopTurns = async (): Promise<void> => {
  for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
};

it("callers of a team wait for each other, and for no other team's", async () => {
  const turns = new TeamTurns(2);
  const inside: (() => void)[] = [];
  const entered: string[] = [];
  const enter = async (name: string): Promise<void> => {
    inside.push(await turns.enter(name.slice(0, 1), here));
    entered.push(name);
  };
  const all = Promise.all(["a1", "a2", "a3", "a4", "b1"].map(enter));
  await loopTurns();
  expect(entered).toEqual(["a1", "a2", "b1"]);
  inside[0]?.();
  inside[0]?.();
  await loopTurns();
  expect(entered).toEqual(["a1", "a2", "b1", "a3"]);
  inside[1]?.();
  await all;
});

it("a caller who leaves while in line does not enter, and the next does", async () => {
  const turns = new TeamTurns(1);
  const leaving = new AbortController();
  const end = await turns.enter("team", here);
  const left = turns.enter("team", leaving.signal);
  const next = turns.enter("team", here);
  leaving.abort();
  end();
  await expect(left).rejects.toMatchObject({ code: "canceled" });
  (await next)();
});

it("the event loop turns between callers whose work waits for nothing", async () => {
  const turns = new TeamTurns(2);
  let loopTurn = 0;
  const count = (): void => void setImmediate(() => ((loopTurn += 1), isOver || count()));
  let isOver = false;
  count();
  const workedIn: number[] = [];
  const work = async (): Promise<void> => {
    const end = await turns.enter("team", here);
    workedIn.push(loopTurn);
    end();
  };
  await Promise.all(Array.from({ length: 10 }, work));
  expect(new Set(workedIn).size).toBeGreaterThanOrEqual(4);
  for (let caller = 0; caller < 10; caller += 1) await work();
  isOver = true;
  expect(new Set(workedIn.slice(10)).size).toBeGreaterThanOrEqual(9);
});
