import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { systemClock } from "@cloche/base";
import { expect, it, onTestFinished } from "vitest";
import { openSqlite } from "./database.ts";

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
  await expect(first).rejects.toMatchObject({ code: "unavailable" });
  other.exec("rollback");
  await database.ping();
}, 30_000);
