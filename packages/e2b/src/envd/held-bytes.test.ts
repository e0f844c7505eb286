import { describe, expect, it } from "vitest";
import { HeldBytes, withJson } from "./held-bytes.ts";

async function* pieces(...texts: string[]) {
  for (const text of texts) yield Buffer.from(text);
}

describe("bytes held for clients", () => {
  it("are bounded for one sandbox, and for all together", () => {
    const all = new HeldBytes(10);
    const [one, other] = [new HeldBytes(8, all), new HeldBytes(8, all)];
    expect([one.take(6), one.take(3), other.take(5), other.take(4)]).toEqual([true, false, false, true]);
    one.give(6);
    expect([other.take(5), other.take(4), one.take(3)]).toEqual([false, true, false]);
    other.give(8);
    expect([all.take(11), all.take(10)]).toEqual([false, true]);
  });

  it("are those of a JSON answer while it is used, and no more afterwards", async () => {
    const held = new HeldBytes(8);
    const read = (...texts: string[]) =>
      withJson<unknown, boolean>(
        pieces(...texts),
        held,
        () => new Error("too large"),
        async (answer) => {
          expect(answer).toEqual([1, 22]);
          return held.take(3);
        },
      );
    expect(await read("[1,", "22]")).toBe(false);
    await expect(read("[1,", "22]   ")).rejects.toThrow("too large");
    await expect(read("[1,")).rejects.toThrow(SyntaxError);
    expect(held.take(8)).toBe(true);
  });
});
