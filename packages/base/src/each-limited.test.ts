import { expect, test } from "vitest";
import { eachLimited } from "./each-limited.ts";

test("does every item in order, so many at a time, and ends when all are done", async () => {
  const begun: number[] = [];
  let inside = 0;
  let most = 0;
  await eachLimited(
    [1, 2, 3, 4, 5, 6, 7],
    async (item) => {
      begun.push(item);
      inside += 1;
      most = Math.max(most, inside);
      await new Promise((resolve) => setTimeout(resolve, 1));
      inside -= 1;
    },
    3,
  );
  expect(begun).toEqual([1, 2, 3, 4, 5, 6, 7]);
  expect(most).toBe(3);
  expect(inside).toBe(0);
});

test("the first failure is told, and an empty list is done", async () => {
  const failing = eachLimited([1, 2], async (item) => {
    if (item === 2) throw new Error("two");
  });
  await expect(failing).rejects.toThrow("two");
  await eachLimited([], () => Promise.reject(new Error("never")));
});
