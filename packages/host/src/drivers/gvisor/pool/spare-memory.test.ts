import { freemem, totalmem } from "node:os";
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { spareMemory } from "./spare-memory.ts";

test("says how much of the memory programs can still have", () => {
  expect(spareMemory(38, 100)).toBe("plenty");
  expect(spareMemory(37, 100)).toBe("enough");
  expect(spareMemory(13, 100)).toBe("enough");
  expect(spareMemory(12, 100)).toBe("short");
  // Memory that pools give back must not alone lead back to plenty.
  expect(spareMemory(100 / 8 + 100 / 6 + 100 / 20, 100)).toBe("enough");
});

test("what Node calls free is what the kernel calls available", () => {
  const kib = /^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))?.[1];
  expect(Math.abs(freemem() - Number(kib) * 1_024) / totalmem()).toBeLessThan(0.05);
});
