// What the lab stands on: a network that can be cut, a PostgreSQL that can go away, an S3 server that is one.
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openS3Store, parseS3Address } from "../../packages/host/src/blob/s3-store.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { blobStoreContract } from "../contracts/blob.ts";
import { eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory, tagOf } from "../fixtures/inventory.ts";
import { cacheFolder } from "../fixtures/service.ts";
import { askDatabase, type LabDatabase, makeDatabase, removeDatabase } from "../lab/database.ts";
import { startDatabase, stopDatabase } from "../lab/database.ts";
import { endProgram, startProgram } from "../lab/node-process.ts";
import { listens } from "../lab/listens.ts";
import { Switch } from "../lab/switch.ts";
import { obtainVersitygw } from "../lab/versitygw.ts";

const PG_PORT = 5432;
const S3_PORT = 7070;
const folder = mkdtempSync(join(tmpdir(), "cloche-ground-"));
/** What was made, undone in the opposite order. */
const undo: (() => Promise<unknown>)[] = [];
const marks = { CLOCHE_HOME: folder };
let network: Switch;
let database: LabDatabase;
let store: BlobStore;
const place = () => ({ on: network.on("pg"), address: network.address("pg"), mark: marks });
/** Whether a program on `node` reaches PostgreSQL. */
const reaches = (node: string): Promise<boolean> => {
  const asks = `require('net').connect({ host: '${network.address("pg")}', port: ${PG_PORT}, timeout: 500 })
    .on('connect', () => process.exit(0)).on('timeout', () => process.exit(1)).on('error', () => process.exit(1))`;
  const [program = "", ...words] = [...network.on(node), process.execPath, "-e", asks];
  return run([program, ...words]).then(
    () => true,
    () => false,
  );
};

beforeAll(async () => {
  const versitygw = await obtainVersitygw(cacheFolder, () => undefined);
  network = await Switch.open(tagOf(folder), ["pg", "s3", "a", "b"]);
  undo.push(() => network.close());
  database = await makeDatabase(place());
  undo.push(() => removeDatabase(database, place()));
  const serves = `${network.address("s3")}:${S3_PORT}`;
  const [data, meta] = [join(folder, "data"), join(folder, "meta")];
  mkdirSync(join(data, "bucket"), { recursive: true });
  mkdirSync(meta);
  const argv = [...network.on("s3"), versitygw, "--port", serves, "posix", "--sidecar", meta, data];
  const env = { ...process.env, ...marks, ROOT_ACCESS_KEY: "key", ROOT_SECRET_KEY: "secret" };
  const server = await startProgram(argv, { env, cwd: "/", logFile: join(folder, "log") });
  undo.push(() => endProgram(server, "SIGTERM"));
  await eventually(() => listens(network.address("s3"), S3_PORT), Boolean);
  const keys = { AWS_ACCESS_KEY_ID: "key", AWS_SECRET_ACCESS_KEY: "secret" };
  store = openS3Store(parseS3Address(`s3://bucket/prefix?endpoint=http://${serves}`, keys));
}, 1_200_000);
afterAll(async () => {
  for (const one of undo.toReversed()) await one();
  expect(grown(emptyInventory, inventory(folder))).toEqual([]);
  rmSync(folder, { recursive: true, force: true });
});

describe("the network", () => {
  it("is cut between two nodes and joined again", async () => {
    expect([await reaches("a"), await reaches("b")]).toEqual([true, true]);
    await network.connect("a", "pg", false);
    expect([await reaches("a"), await reaches("b")]).toEqual([false, true]);
    await network.connect("a", "pg", true);
    expect(await reaches("a")).toBe(true);
  });

  it("loses a node whose plug is pulled", async () => {
    await network.plug("b", false);
    expect([await reaches("a"), await reaches("b")]).toEqual([true, false]);
    await network.plug("b", true);
    expect(await eventually(() => reaches("b"), Boolean)).toBe(true);
  });
});

it("PostgreSQL stops as in a crash, and has what it had after it", async () => {
  await askDatabase(database, place(), "create table kept (what text)");
  await askDatabase(database, place(), "insert into kept values ('this')");
  await stopDatabase(database, place());
  expect(await reaches("a")).toBe(false);
  await startDatabase(database, place());
  expect(await askDatabase(database, place(), "select what from kept")).toBe("this\n");
});

blobStoreContract("versitygw", () => store);
