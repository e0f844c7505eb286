import { mkdtemp, mkdir, readdir, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import S3rver from "s3rver";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { openS3Store, parseS3Address } from "../../packages/host/src/blob/s3-store.ts";
import { blobStoreContract } from "./blob.ts";

let folder = "";
let directory: BlobStore;
let s3: BlobStore;
let server: { close(): Promise<void> };

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-blob-"));
  directory = await openDirectoryStore(join(folder, "files"));
  const s3rver = new S3rver({
    address: "127.0.0.1",
    port: 0,
    silent: true,
    directory: join(folder, "s3"),
    configureBuckets: [{ name: "checkpoints", configs: [] }],
  });
  const { port } = await s3rver.run();
  server = s3rver;
  const keys = { AWS_ACCESS_KEY_ID: "S3RVER", AWS_SECRET_ACCESS_KEY: "S3RVER" };
  s3 = openS3Store(parseS3Address(`s3://checkpoints/team/blobs?endpoint=http://127.0.0.1:${port}`, keys));
});
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

blobStoreContract("directory", () => directory);
// s3rver writes objects in place; S3 itself replaces them in one step, and we never write one key twice.
blobStoreContract("S3", () => s3, { atomicReplace: false });

describe("directory store", () => {
  it("sweeps what a killed write left a day ago, not a write under way, and lists neither", async () => {
    const home = join(folder, "swept");
    await mkdir(join(home, "packs"), { recursive: true });
    await writeFile(join(home, "packs", "x.0011.part"), "half");
    await writeFile(join(home, "packs", "y.0022.part"), "half");
    const yesterday = new Date(Date.now() - 25 * 3_600_000);
    await utimes(join(home, "packs", "x.0011.part"), yesterday, yesterday);
    const store = await openDirectoryStore(home);
    expect(await store.list("")).toEqual([]);
    expect(await readdir(join(home, "packs"))).toEqual(["y.0022.part"]);
  });
});

describe("S3 address", () => {
  it("says which credentials are missing", () => {
    expect(() => parseS3Address("s3://bucket", {})).toThrow("AWS_ACCESS_KEY_ID");
  });
});
