import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { systemClock } from "@cloche/base";
import { expect, it, onTestFinished } from "vitest";
import { openSqlite } from "./database.ts";
import { readinessMs } from "./readiness.ts";

const tookMs = async (ping: Promise<void>): Promise<number> => {
  const beganMs = performance.now();
  await expect(ping).rejects.toMatchObject({ code: "unavailable", message: expect.stringMatching(/locked/) });
  return performance.now() - beganMs;
};

it("a database that another program has locked is not ready, and is again once it can be written", async () => {
  const folder = mkdtempSync(join(tmpdir(), "cloche-locked-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "db");
  const database = await openSqlite(file, systemClock);
  onTestFinished(() => database.close());
  const other = new DatabaseSync(file);
  onTestFinished(() => other.close());
  await database.ping();
  other.exec("begin exclusive");
  const first = database.ping();
  // Probes that come meanwhile wait with it.
  expect(database.ping()).toBe(first);
  let ticks = 0;
  const ticking = setInterval(() => (ticks += 1), 10);
  onTestFinished(() => clearInterval(ticking));
  // Long before the wait for the lock is over, which is 5 s, and those who ask later wait no more. Others are served.
  expect(await tookMs(first)).toBeLessThan(4 * readinessMs);
  expect(ticks).toBeGreaterThan(5);
  let laterMs = 0;
  for (let count = 0; count < 20; count += 1) laterMs += await tookMs(database.ping());
  expect(laterMs).toBeLessThan(4 * readinessMs);
  other.exec("rollback");
  await expect.poll(() => database.ping().then(() => "ready")).toBe("ready");
}, 30_000);
