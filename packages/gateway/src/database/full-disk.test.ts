import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "@cloche/base";
import { Kysely, sql } from "kysely";
import { expect, it } from "vitest";
import { withOutOfReach } from "./out-of-reach.ts";
import { sqliteDialect } from "./sqlite-dialect.ts";

it("a transaction that fills the disk says so, and the next one works when there is room", async () => {
  const folder = await mkdtemp(join(tmpdir(), "cloche-full-"));
  const db = new Kysely<object>({ dialect: withOutOfReach(sqliteDialect(join(folder, "db"), systemClock)) });
  try {
    await sql`create table t (x)`.execute(db);
    // The disk is full for this database: it may not grow.
    await sql`pragma max_page_count = 3`.execute(db);
    const fill = () =>
      db.transaction().execute((tx) => sql`insert into t values (zeroblob(1000000))`.execute(tx));
    await expect(fill()).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("disk of the service's database is full") as string,
    });
    await sql`pragma max_page_count = 100000`.execute(db);
    await fill();
  } finally {
    await db.destroy();
    await rm(folder, { recursive: true });
  }
});
