import { expect, test } from "vitest";
import { Turns } from "./turns.ts";

test("lets so many in at once, the others in order, and each place is there again after its turn", async () => {
  const turns = new Turns(2);
  const inside: string[] = [];
  const enter = async (name: string): Promise<() => void> => {
    const leave = await turns.enter();
    inside.push(name);
    return leave;
  };
  const [a, b, c, d] = ["a", "b", "c", "d"].map(enter);
  const [leaveA, leaveB] = await Promise.all([a, b]);
  await new Promise(setImmediate);
  expect(inside).toEqual(["a", "b"]);
  leaveB?.();
  const leaveC = await c;
  await new Promise(setImmediate);
  expect(inside).toEqual(["a", "b", "c"]);
  leaveA?.();
  const leaveD = await d;
  leaveC?.();
  leaveD?.();
  await Promise.all([enter("e"), enter("f")]);
  expect(inside).toEqual(["a", "b", "c", "d", "e", "f"]);
});
