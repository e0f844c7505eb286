// A PostgreSQL that goes away breaks what is under way, and nothing else: the gateway's process lives on.
import { Kysely, sql } from "kysely";
import { afterAll, beforeAll, expect, it } from "vitest";
import { postgresDialect } from "../../packages/gateway/src/database/postgres-dialect.ts";
import { openPostgres } from "@cloche/gateway";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";

let cluster: PostgresCluster;
beforeAll(async () => {
  cluster = await startPostgres();
});
afterAll(() => cluster.stop());

it("a connection that breaks between two statements of a transaction fails the transaction alone", async () => {
  const idle: Error[] = [];
  const { dialect } = postgresDialect(await cluster.newDatabase(), (error) => idle.push(error));
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

const clock = { nowMs: () => 0 };
const team = (id: string) => ({ id: `team-${id}`, name: id, createdAtMs: 0 });
const onlyRead = { code: "unavailable", message: expect.stringContaining("can only be read") as string };

it("a standby can be read and not written, and is not ready until it is promoted", async () => {
  const db = await openPostgres(await cluster.newDatabase(), clock);
  await db.teams.insert(team("before"));
  await db.ping();
  await cluster.demote();
  await expect.poll(() => db.teams.all().catch(() => []), { timeout: 5_000 }).toHaveLength(1);
  await expect(db.teams.insert(team("x"))).rejects.toMatchObject(onlyRead);
  await expect(db.ping()).rejects.toMatchObject(onlyRead);
  await cluster.promote();
  await db.ping();
  await db.teams.insert(team("after"));
  await db.close();
});

it("connections to a server that can only be read are not used again", async () => {
  const url = await cluster.newDatabase();
  const name = new URL(url).pathname.slice(1);
  const db = await openPostgres(url, clock, undefined, { isShared: true });
  const listening = db.changeLog?.listen(() => undefined);
  const listener = (): Promise<string> =>
    cluster.run(`select pid from pg_stat_activity where datname = '${name}' and query like 'listen %'`);
  const five = async <T>(call: (n: number) => Promise<T>): Promise<T[]> =>
    await Promise.all(Array.from({ length: 5 }, (_, n) => call(n)));
  await expect.poll(listener, { timeout: 5_000 }).not.toBe("");
  // A session keeps the setting with which it began: these five stay as they are, like those to a demoted server.
  await cluster.run(`alter database ${name} set default_transaction_read_only = on`);
  await cluster.dropConnections();
  await expect
    .poll(async () => await five(() => db.teams.all()).catch(() => []), { timeout: 5_000 })
    .toHaveLength(5);
  await expect.poll(listener, { timeout: 5_000 }).not.toBe("");
  const before = await listener();
  await cluster.run(`alter database ${name} reset default_transaction_read_only`);
  await expect(db.teams.insert(team("x"))).rejects.toMatchObject(onlyRead);
  await five((n) => db.teams.insert(team(`after-${n}`)));
  await expect.poll(async () => [before, ""].includes(await listener()), { timeout: 5_000 }).toBe(false);
  await listening?.close();
  await db.close();
});

it("readiness alone leaves the connections to a server that can only be read", async () => {
  const url = await cluster.newDatabase();
  const name = new URL(url).pathname.slice(1);
  const db = await openPostgres(url, clock);
  await cluster.run(`alter database ${name} set default_transaction_read_only = on`);
  await cluster.dropConnections();
  await expect
    .poll(() => db.ping().catch((error: unknown) => error), { timeout: 5_000 })
    .toMatchObject(onlyRead);
  await cluster.run(`alter database ${name} reset default_transaction_read_only`);
  await expect.poll(() => db.ping().catch((error: unknown) => error), { timeout: 5_000 }).toBeUndefined();
  await db.close();
});
