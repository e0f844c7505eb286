import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createLog } from "./log.ts";
import { LogFile } from "./log-file.ts";

const linesOf = (file: string): Record<string, unknown>[] =>
  readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Record<string, unknown>);

test("lines reach the file soon, warnings at once and in order, secrets never", async () => {
  const folder = mkdtempSync(join(tmpdir(), "cloche-log-"));
  const file = join(folder, "logs", "service.log");
  const log = createLog({ level: "info", file });
  log.child({ part: "x" }).info({ request_id: "r1", authorization: "Bearer t" }, "first");
  log.debug({}, "unseen");
  log.warn({ err: new Error("outer", { cause: new Error("inner") }) }, "second");
  const [first, second] = linesOf(file);
  expect(first).toMatchObject({
    level: "info",
    part: "x",
    request_id: "r1",
    msg: "first",
    authorization: "[redacted]",
  });
  expect(second).toMatchObject({ level: "warn", msg: "second" });
  expect(JSON.stringify(second)).toContain("inner");
  log.info({}, "third");
  while (linesOf(file).length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(linesOf(file)[2]).toMatchObject({ msg: "third" });
  rmSync(folder, { recursive: true });
});

test("a line steers no terminal on which it is read", () => {
  const folder = mkdtempSync(join(tmpdir(), "cloche-log-"));
  const file = join(folder, "x.log");
  const name = "\x1b]0;owned\x07\x9b2J\u202e";
  createLog({ level: "warn", file }).warn({ name }, "m");
  expect(readFileSync(file, "utf8").trimEnd()).not.toMatch(/[\p{Cc}\u202e]/u);
  expect(linesOf(file)[0]).toMatchObject({ name });
  rmSync(folder, { recursive: true });
});

test("a log that cannot be written does not throw", () => {
  const full = new LogFile("/dev/full");
  full.write("lost on a full disk\n".repeat(1_000));
  expect(() => full.flush()).not.toThrow();
  full.close();
});
