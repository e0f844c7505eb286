/** Whose a database or a store is: one suite for SQLite, PostgreSQL, a directory and S3. */
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type OwnedPlace, type Owner, ownerVerdict, systemClock } from "@cloche/base";
import { openPostgres, openSqlite } from "@cloche/gateway";
import { newInstallationId, newSessionId } from "@cloche/protocol";
import S3rver from "s3rver";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { openS3Store, parseS3Address } from "../../packages/host/src/blob/s3-store.ts";
import { OwnerOfStore } from "../../packages/host/src/blob/store-owner.ts";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";

let folder = "";
let cluster: PostgresCluster;
let s3rver: S3rver;
let s3Port = 0;
const closing: (() => Promise<void>)[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-owner-"));
  cluster = await startPostgres();
  s3rver = new S3rver({
    address: "127.0.0.1",
    port: 0,
    silent: true,
    directory: join(folder, "s3"),
    configureBuckets: [{ name: "checkpoints", configs: [] }],
  });
  s3Port = (await s3rver.run()).port;
});
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});
afterAll(async () => {
  await s3rver.close();
  await cluster.stop();
  await rm(folder, { recursive: true, force: true });
});

const keys = { AWS_ACCESS_KEY_ID: "S3RVER", AWS_SECRET_ACCESS_KEY: "S3RVER" };
const s3Store = async (place: string): Promise<BlobStore> =>
  openS3Store(parseS3Address(`s3://checkpoints/${place}?endpoint=http://127.0.0.1:${s3Port}`, keys));

/** Each opens the same place as often as it is called: as that many services would. */
const kinds: { name: string; newPlace(): Promise<() => Promise<OwnedPlace>> }[] = [
  {
    name: "SQLite",
    newPlace: async () => {
      const path = join(folder, `${randomBytes(4).toString("hex")}.db`);
      return async () => database(await openSqlite(path, systemClock));
    },
  },
  {
    name: "PostgreSQL",
    newPlace: async () => {
      const url = await cluster.newDatabase();
      return async () => database(await openPostgres(url, systemClock));
    },
  },
  { name: "a directory", newPlace: async () => storeOpener(openDirectoryStore(join(folder, newName()))) },
  { name: "S3", newPlace: async () => storeOpener(s3Store(newName())) },
];

const newName = (): string => randomBytes(6).toString("hex");

function database(opened: Awaited<ReturnType<typeof openSqlite>>): OwnedPlace {
  closing.push(() => opened.close());
  return opened.ownership;
}

async function storeOpener(store: Promise<BlobStore>): Promise<() => Promise<OwnedPlace>> {
  const blobs = await store;
  return async () => new OwnerOfStore(blobs, systemClock);
}

const anOwner = (changes: Partial<Owner> = {}): Owner => ({
  installation: newInstallationId(randomBytes),
  home: "/srv/cloche",
  host: "alpha",
  machine: "m-1",
  session: newSessionId(randomBytes),
  claimedAtMs: 1_790_000_000_000,
  seenAtMs: 1_790_000_000_123,
  ...changes,
});

describe.each(kinds)("owner of $name", ({ newPlace }) => {
  it("is nobody until it is claimed, and then is what was written", async () => {
    const place = await (await newPlace())();
    expect(await place.owner()).toBeUndefined();
    const first = anOwner({ home: '/a "home" 日本', host: "β" });
    expect(await place.replaceOwner(undefined, first)).toBe(true);
    expect(await place.owner()).toEqual(first);
  });

  it("is claimed by one of many that race, and the others are told so", async () => {
    const open = await newPlace();
    const owners = Array.from({ length: 8 }, () => anOwner());
    const places = await Promise.all(owners.map(() => open()));
    const won = await Promise.all(
      places.map((place, index) => place.replaceOwner(undefined, owners[index] as Owner)),
    );
    expect(won.filter(Boolean)).toHaveLength(1);
    expect(await places[0]?.owner()).toEqual(owners[won.indexOf(true)]);
  });

  it("changes only from what was read", async () => {
    const open = await newPlace();
    const [one, two] = [await open(), await open()];
    const first = anOwner();
    await one.replaceOwner(undefined, first);
    const second = anOwner({ installation: first.installation });
    expect(await two.replaceOwner(undefined, second)).toBe(false);
    expect(await two.replaceOwner(anOwner(), second)).toBe(false);
    expect(await two.replaceOwner(first, second)).toBe(true);
    expect(await one.owner()).toEqual(second);
  });

  it("tells who was replaced, who lives and who stopped", async () => {
    const place = await (await newPlace())();
    const first = anOwner();
    await place.replaceOwner(undefined, first);
    expect(await place.ownerSeen(first.session, 5)).toBe(true);
    expect(await place.owner()).toEqual({ ...first, seenAtMs: 5 });
    expect(await place.ownerSeen(anOwner().session, 9)).toBe(false);
    expect((await place.owner())?.seenAtMs).toBe(5);
    await place.removeOwner(anOwner().session);
    expect(await place.owner()).toBeDefined();
    await place.removeOwner(first.session);
    expect(await place.owner()).toBeUndefined();
  });
});

describe("a store's owner", () => {
  it("leaves no claim behind, and one that a crash left does not stand in the way for long", async () => {
    const home = join(folder, newName());
    const blobs = await openDirectoryStore(home);
    const left = `owner-claims/run-${"0".repeat(20)}`;
    await blobs.put(left, Buffer.from("{}"));
    const place = new OwnerOfStore(blobs, systemClock);
    // The store's clock as a store would tell it: the crash was a moment ago, then two minutes.
    expect(await place.replaceOwner(undefined, anOwner())).toBe(false);
    const older: BlobStore = {
      put: (key, data) => blobs.put(key, data),
      get: (key, range) => blobs.get(key, range),
      delete: (key) => blobs.delete(key),
      list: async (prefix) =>
        (await blobs.list(prefix)).map((one) =>
          one.key === left ? { ...one, modifiedAtMs: one.modifiedAtMs - 120_000 } : one,
        ),
    };
    expect(await new OwnerOfStore(older, systemClock).replaceOwner(undefined, anOwner())).toBe(true);
    expect(await readdir(join(home, "owner-claims"))).toEqual([]);
  });

  it("that cannot be read is nobody's to take", async () => {
    const blobs = await openDirectoryStore(join(folder, newName()));
    const place = new OwnerOfStore(blobs, systemClock);
    for (const damage of ["", "{", "{}", '{"format":2,"installation":"ins-x"}']) {
      await blobs.put("owner", Buffer.from(damage));
      await expect(place.owner()).rejects.toThrow(/does not say whose it is/);
      await expect(place.replaceOwner(undefined, anOwner())).rejects.toThrow(/does not say whose it is/);
    }
  });
});

describe("whose a place is to a service that starts", () => {
  const nowMs = 1_790_000_000_000;
  const me = anOwner();
  it.each<[string, Partial<Owner> | undefined, string]>([
    ["nobody has claimed", undefined, "free"],
    ["it used itself and was killed", {}, "ours"],
    ["it stopped using elsewhere", { home: "/elsewhere", seenAtMs: 0 }, "ours"],
    ["it used elsewhere, long ago", { home: "/elsewhere", seenAtMs: nowMs - 180_000 }, "ours"],
    ["its installation uses in another home", { home: "/elsewhere", seenAtMs: nowMs - 179_000 }, "in use"],
    ["its installation uses on another host", { machine: "m-2", seenAtMs: nowMs + 60_000 }, "in use"],
    ["another installation owns", { installation: anOwner().installation, seenAtMs: 0 }, "theirs"],
  ])("that %s", (_, found, verdict) => {
    const owner = found && { ...me, seenAtMs: nowMs - 1_000, ...found };
    expect(ownerVerdict(owner, me, nowMs)).toBe(verdict);
  });
});
