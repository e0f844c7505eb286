import { freemem, totalmem } from "node:os";
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { memoryHeadroom } from "./memory-headroom.ts";

test("says how much of the memory programs can still have", () => {
  expect(memoryHeadroom(38, 100)).toBe("plenty");
  expect(memoryHeadroom(37, 100)).toBe("enough");
  expect(memoryHeadroom(13, 100)).toBe("enough");
  expect(memoryHeadroom(12, 100)).toBe("short");
  // Memory that pools give back must not alone lead back to plenty.
  expect(memoryHeadroom(100 / 8 + 100 / 6 + 100 / 20, 100)).toBe("enough");
});

test("what Node calls free is what the kernel calls available", () => {
  const kib = /^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))?.[1];
  expect(Math.abs(freemem() - Number(kib) * 1_024) / totalmem()).toBeLessThan(0.05);
});
