import { describe, expect, it } from "vitest";
import { sideBySide } from "./side-by-side.ts";

describe("steps side by side", () => {
  const lines: string[] = [];
  const progress = (step: string, detail?: string) =>
    void lines.push(detail === undefined ? step : `${step} | ${detail}`);

  it("run at the same time and are told as details of one", async () => {
    lines.length = 0;
    let now = 0;
    const first = Promise.withResolvers<void>();
    const both = await sideBySide(
      progress,
      "both",
      [
        async (told) => {
          told("one");
          // Opened by the other task, so neither waits for the other's end.
          await first.promise;
          told("one", "half");
          // The other task has ended by then.
          await new Promise(setImmediate);
          now = 5_000;
          return 1;
        },
        async (told) => {
          told("two", "begins");
          first.resolve();
          return "b";
        },
      ],
      () => now,
    );
    expect(both).toEqual([1, "b"]);
    expect(lines).toEqual([
      "both",
      "both | one",
      "both | two: begins",
      "both | one: half",
      "both | one took 5 s",
    ]);
  });

  it("a failure is thrown when the other has finished its work", async () => {
    lines.length = 0;
    let finished = false;
    const failed = Promise.withResolvers<void>();
    const both = sideBySide(progress, "both", [
      async (told) => {
        told("one");
        failed.resolve();
        throw new Error("one failed: no proxy\n  repair: set one");
      },
      async () => {
        await failed.promise;
        await new Promise(setImmediate);
        finished = true;
      },
    ]);
    await expect(both).rejects.toThrow("no proxy\n  repair");
    expect(finished).toBe(true);
    expect(lines).toContain("both | one failed: no proxy; what runs beside it is finished first");
  });
});
