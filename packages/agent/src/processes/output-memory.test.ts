import { expect, it } from "vitest";
import { OutputLog } from "./output-log.ts";
import { OutputMemory } from "./output-memory.ts";

const full = (memory: OutputMemory, bytes: number): OutputLog => {
  const log = new OutputLog(10_000_000, "newest", memory);
  log.append(Buffer.alloc(bytes, 97));
  return log;
};

it("takes from what ended longest ago first", () => {
  const memory = new OutputMemory(() => 1_000_000);
  const [older, newer] = [full(memory, 300_000), full(memory, 300_000)];
  for (const log of [older, newer]) {
    log.end();
    memory.retire(log);
  }
  const live = full(memory, 300_000);
  live.append(Buffer.alloc(200_000));
  expect(older.at(0, 1)).toEqual({ kind: "gap", to: 300_000 });
  expect(newer.at(0, 1).kind).toBe("data");
  expect(live.startOffset).toBe(0);
  expect(memory.usedBytes).toBeLessThanOrEqual(1_000_000);
});

it("takes the oldest of the largest where all of them run, and never stays above its limit", () => {
  const memory = new OutputMemory(() => 1_000_000);
  const small = full(memory, 100_000);
  const large = new OutputLog(10_000_000, "newest", memory);
  for (let sent = 0; sent < 5_000_000; sent += 50_000) {
    large.append(Buffer.alloc(50_000, 98));
    expect(memory.usedBytes).toBeLessThanOrEqual(1_000_000);
  }
  expect(small.startOffset).toBe(0);
  expect(large.startOffset).toBeGreaterThan(4_000_000);
  expect(large.at(large.startOffset, 1).kind).toBe("data");
});

it("gives back what is forgotten", () => {
  const memory = new OutputMemory(() => 1_000_000);
  const log = full(memory, 500_000);
  memory.forget(log);
  expect(memory.usedBytes).toBe(0);
});

it("counts what an exec had kept from when it is remembered", () => {
  const memory = new OutputMemory(() => 1_000_000);
  const log = new OutputLog(10_000_000, "first");
  log.append(Buffer.alloc(400_000));
  expect(memory.usedBytes).toBe(0);
  log.end();
  log.chargeTo(memory);
  memory.retire(log);
  expect(memory.usedBytes).toBeGreaterThanOrEqual(400_000);
  full(memory, 900_000);
  expect(log.at(0, 1).kind).toBe("gap");
});
