import { EventEmitter } from "node:events";
import { describe, expect, it } from "vitest";
import { OutputLog } from "./output-log.ts";
import { goesOut, readOutput } from "./output-reader.ts";

class FarEnd extends EventEmitter {
  destroyed = false;
  write(): boolean {
    return false;
  }
}

describe("what was written to a reader", () => {
  it("goes out when there is room again", async () => {
    const far = new FarEnd();
    const out = goesOut(far, 10_000);
    far.emit("drain");
    expect(await out).toBe(true);
    expect(far.listenerCount("drain") + far.listenerCount("close")).toBe(0);
  });

  it("does not where the reader is gone, or takes nothing within the bound", async () => {
    const far = new FarEnd();
    const lost = goesOut(far, 10_000);
    far.emit("close");
    expect(await lost).toBe(false);
    expect(await goesOut(far, 20)).toBe(false);
    far.destroyed = true;
    expect(await goesOut(far)).toBe(false);
  });
});

describe("reading on", () => {
  it("stops where its taker does, and goes on after a gap", async () => {
    const log = new OutputLog(4, "newest");
    log.append(Buffer.from("abcdefgh"));
    const told: unknown[] = [];
    const read = readOutput(
      [{ name: "stdout", log, offset: 1 }],
      {
        data: (_name, offset, data) => {
          told.push([offset, data.toString()]);
          if (told.length === 2) log.append(Buffer.from("ij"));
          return told.length < 3;
        },
        gap: (_name, from, to) => Boolean(told.push([from, to])),
      },
      new AbortController().signal,
      true,
    );
    expect(await read).toBe(false);
    expect(told).toEqual([
      [1, 4],
      [4, "efgh"],
      [8, "ij"],
    ]);
  });

  it("ends with its reader", async () => {
    const gone = new AbortController();
    const log = new OutputLog(4, "newest");
    const taker = { data: () => true, gap: () => true };
    const read = readOutput([{ name: "stdout", log, offset: 0 }], taker, gone.signal, true);
    gone.abort();
    expect(await read).toBe(false);
  });
});
