import {
  DummyDriver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  sql,
} from "kysely";
import { expect, it } from "vitest";
import { withOutOfReach } from "./out-of-reach.ts";

/** The code of the error that a caller gets for an error of the driver. */
async function told(thrown: object): Promise<unknown> {
  const driver = new DummyDriver();
  driver.acquireConnection = () =>
    Promise.resolve({
      executeQuery: () => Promise.reject(Object.assign(new Error("from the driver"), thrown)),
      // oxlint-disable-next-line require-yield -- never called
      async *streamQuery() {
        throw new Error("not streamed");
      },
    });
  const db = new Kysely<object>({
    dialect: withOutOfReach({
      createAdapter: () => new PostgresAdapter(),
      createDriver: () => driver,
      createIntrospector: (kysely) => new PostgresIntrospector(kysely),
      createQueryCompiler: () => new PostgresQueryCompiler(),
    }),
  });
  return await sql`select 1`.execute(db).then(
    () => "answered",
    (error: { code?: unknown }) => error.code,
  );
}

it.each([
  ["a demoted server or a standby", { code: "25006" }],
  ["a shutdown by its operator", { code: "57P01" }],
  ["a server that is starting, or stopping", { code: "57P03" }],
  ["a full disk", { code: "53100" }],
  ["too many connections", { code: "53300" }],
  ["a broken connection", { code: "08006" }],
  ["a disk that fails", { code: "58030" }],
  ["a name that does not resolve", { code: "ENOTFOUND" }],
  ["a name server that does not answer", { code: "EAI_AGAIN" }],
  ["SQLite: a file system that can only be read", { errcode: 8 }],
  ["SQLite: a full disk", { errcode: 13 }],
])("is out of reach: %s", async (_what, thrown) => {
  expect(await told(thrown)).toBe("unavailable");
});

it.each(["23505", "42601", "22P02"])("is a fault of the query, or an answer: %s", async (code) => {
  expect(await told({ code })).toBe(code);
});
