// A PostgreSQL that goes away breaks what is under way, and nothing else: the gateway's process lives on.
import { Kysely, sql } from "kysely";
import { afterAll, beforeAll, expect, it } from "vitest";
import { postgresDialect } from "../../packages/gateway/src/database/postgres-dialect.ts";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";

let cluster: PostgresCluster;
beforeAll(async () => {
  cluster = await startPostgres();
});
afterAll(() => cluster.stop());

it("a connection that breaks between two statements of a transaction fails the transaction alone", async () => {
  const idle: Error[] = [];
  const dialect = postgresDialect(await cluster.newDatabase(), (error) => idle.push(error));
  const database = new Kysely<object>({ dialect });
  // Vitest fails the file for an error that nobody listens to.
  const broken = database.transaction().execute(async (transaction) => {
    await sql`select 1`.execute(transaction);
    await cluster.dropConnections();
    await new Promise((resolve) => setTimeout(resolve, 500));
    await sql`select 2`.execute(transaction);
  });
  await expect(broken).rejects.toThrow();
  expect((await sql<{ n: number }>`select 3 as n`.execute(database)).rows).toEqual([{ n: 3 }]);
  expect(idle).toEqual([]);
  await database.destroy();
});
