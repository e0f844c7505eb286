/** Usage on every database: by what name a sandbox is known in it, and who made it. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

describe.each(databaseKinds)("names in the usage on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  it("follow a new name of the sandbox, and say which key made it", async () => {
    const record = aSandbox({ teamId: "team-a", createdBy: "key-7" });
    await db.sandboxes.insert([rowOf(record)]);
    const running = await db.sandboxes.change(record, { state: "SANDBOX_STATE_RUNNING" }, nowMs);
    await db.sandboxes.change(running ?? record, { name: "renamed" }, nowMs + 20);
    const query = { teamId: "team-a", fromMs: nowMs, toMs: nowMs + 50 };
    expect(await db.usage.list(query, { afterSandboxId: "", limit: 9 })).toMatchObject([
      { sandboxId: record.id, name: "renamed", createdBy: "key-7" },
    ]);
  });
});
