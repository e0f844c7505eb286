import { describe, expect, it } from "vitest";
import type { Clock } from "./clock.ts";
import { Polls } from "./polls.ts";

const forever = new Promise<void>(() => undefined);
const subjects = (names: string[]) => names.map((id) => ({ id }));
const hanging = Array.from({ length: 50 }, (_, index) => `hangs-${index}`);

/** A clock whose sleeps end in the next turn of the event loop. */
const clock: Clock = {
  nowMs: () => 0,
  monotonicMs: () => 0,
  sleep: () => new Promise((resolve) => setImmediate(resolve)),
};

describe("Looks", () => {
  it("looks at the others, and ends its round, though many hang", async () => {
    const looks = new Polls(clock);
    const seen: string[] = [];
    const poll = async ({ id }: { id: string }): Promise<void> => {
      seen.push(id);
      if (hanging.includes(id)) await forever;
    };
    await looks.each(subjects([...hanging, "answers"]), poll);
    expect(seen).toContain("answers");
    expect(seen).toHaveLength(51);
    // Machines that still hang are not looked at again.
    await looks.each(subjects([...hanging, "answers"]), poll);
    expect(seen.slice(51)).toEqual(["answers"]);
  });

  it("looks at one again once its look has ended, by an error too", async () => {
    const looks = new Polls(clock);
    let asked = 0;
    const poll = async (): Promise<void> => void (asked += 1);
    await looks.each(subjects(["a"]), poll);
    await looks.each(subjects(["a"]), poll);
    expect(asked).toBe(2);
  });

  it("begins no more when it is over", async () => {
    const seen: string[] = [];
    const poll = async ({ id }: { id: string }): Promise<void> => void seen.push(id);
    await new Polls(clock).each(subjects(["a", "b"]), poll, () => true);
    expect(seen).toEqual([]);
  });
});
