import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { recordedLog } from "@cloche/base/testing";
import { expect, it, onTestFinished } from "vitest";
import { Stops } from "./stops.ts";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

it("tells which part is not stopped after a second, and what it waits for, until it is", async () => {
  const folder = mkdtempSync(join(tmpdir(), "cloche-stops-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const fifo = join(folder, "fifo");
  execFileSync("mkfifo", [fifo]);
  const { log, lines } = recordedLog();
  const stops = new Stops(log);
  stops.add("quick", async () => undefined);
  // Opening waits for a writer.
  stops.add(
    "stuck",
    async () => (await open(fifo)).close(),
    async () => `a writer of ${fifo}`,
  );
  const stopped = stops.unwind();
  await sleep(600);
  expect([stops.waiting, lines]).toEqual([undefined, []]);
  await expect.poll(() => stops.waiting).toBe(`stuck: waits for a writer of ${fifo} (1 s)`);
  writeFileSync(fifo, "");
  await stopped;
  expect(stops.waiting).toBeUndefined();
  expect(lines.map(({ fields, message }) => ({ ...fields, ms: 0, message }))).toEqual([
    { part: "stuck", ms: 0, waits_for: `a writer of ${fifo}`, message: "is not stopped yet" },
    { part: "stuck", ms: 0, message: "stopped" },
    { part: "quick", ms: 0, message: "stopped" },
  ]);
});

it("names a part also if it cannot say what it waits for", async () => {
  const { log, lines } = recordedLog();
  const stops = new Stops(log);
  stops.add(
    "mute",
    () => sleep(1_300),
    async () => Promise.reject(new Error("no list of users")),
  );
  await stops.unwind();
  expect(lines[0]?.fields).toMatchObject({ part: "mute", waits_for: "no list of users" });
});

it("a start that fails stops what it had started, and tells of its own failure alone", async () => {
  const { log, lines } = recordedLog();
  const stops = new Stops(log);
  const stopped: string[] = [];
  const start = stops.begin(async () => {
    stops.add("first", async () => void stopped.push("first"));
    stops.add("second", async () => Promise.reject(new Error("will not")));
    throw new Error("the third did not start");
  });
  await expect(start).rejects.toThrow("the third did not start");
  expect(stopped).toEqual(["first"]);
  expect(lines.at(-1)?.message).toBe("undoing a failed start failed");
});
