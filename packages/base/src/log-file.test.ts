import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { LogFile } from "./log-file.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-log-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

it("is bounded in size and number, over starts, and keeps the newest lines", () => {
  const path = join(folder, "service.log");
  for (let start = 0; start < 4; start += 1) {
    const file = new LogFile(path, { bytes: 1_000, files: 2 });
    for (let line = 0; line < 50; line += 1) {
      file.write(`${String(start * 50 + line).padStart(99, "0")}\n`);
      file.flush();
    }
    file.close();
  }
  expect(readdirSync(folder).toSorted()).toEqual(["service.log", "service.log.1", "service.log.2"]);
  for (const name of readdirSync(folder)) expect(statSync(join(folder, name)).size).toBeLessThan(1_200);
  const lines = ["service.log.2", "service.log.1", "service.log"].flatMap((name) =>
    readFileSync(join(folder, name), "utf8").trim().split("\n").map(Number),
  );
  expect(lines.at(-1)).toBe(199);
  expect(lines).toEqual(Array.from({ length: lines.length }, (_, at) => 200 - lines.length + at));
  expect(lines.length).toBeGreaterThan(20);
});
