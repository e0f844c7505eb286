// Suspended images on a real reflink pool: of memory that a driver cloned from a file of its own, only the difference is stored.
import { randomBytes } from "node:crypto";
import { copyFile, mkdir, mkdtemp, open, readFile, rename, rm, truncate, writeFile } from "node:fs/promises";
import { constants } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { obtainNative } from "../../packages/artifacts/src/programs/programs.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { CheckpointArchive } from "../../packages/host/src/checkpoint/archive.ts";
import { TemplateBases } from "../../packages/host/src/checkpoint/template-bases.ts";
import type { TravellingRecord } from "../../packages/host/src/suspended/image-description.ts";
import { StoredImages } from "../../packages/host/src/suspended/stored-images.ts";
import { closePool, openPool, type Pool } from "../../packages/host/src/pool/pool.ts";
import { Native } from "../../packages/host/src/sys/native.ts";
import { FakeNames } from "../../packages/host/src/testing/fake-names.ts";

const MIB = 1024 * 1024;
const MEMORY_BYTES = 16 * MIB;
const record = { id: `sbx-${"m".repeat(20)}`, teamId: "team-t", runtime: "qemu", diskMb: 16, epoch: 3 };
const { signal } = new AbortController();
let home = "";
let pool: Pool;
let native: Native;
let place: string;
let names: FakeNames;
let images: StoredImages;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-images-"));
  const progress = (): void => undefined;
  pool = await openPool({ home, sizeBytes: 3 * 1024 ** 3, progress });
  native = new Native(await obtainNative(process.env["CLOCHE_CACHE"] ?? join(home, "cache"), progress));
});
afterAll(async () => {
  await native?.close();
  await closePool(home);
  await rm(home, { recursive: true, force: true });
});
beforeEach(async () => {
  place = await mkdtemp(join(pool.dir, "case-"));
  for (const name of ["base", "saved", "brought"]) await mkdir(join(place, name));
  await writeFile(join(place, "template"), "");
  await truncate(join(place, "template"), 16 * MIB);
  await writeBase();
  names = new FakeNames();
  const blobs = await openDirectoryStore(join(place, "storage"));
  const parts = { blobs, native, randomBytes, nowMs: Date.now, poolDir: pool.dir };
  images = new StoredImages({
    ...parts,
    archive: new CheckpointArchive({ ...parts, folder: "images" }),
    templates: new TemplateBases({
      ...parts,
      archive: new CheckpointArchive(parts),
      template: { name: "base", image: async () => join(place, "template") },
      names,
      signal,
    }),
    names,
    generation: () => 1,
  });
});

/** Puts a file of new random content in the place of the base. */
async function writeBase(): Promise<void> {
  await writeFile(join(place, "base/new"), randomBytes(MEMORY_BYTES));
  await rename(join(place, "base/new"), join(place, "base/memory"));
}

/** Clones the base, changes a byte of it, and stores that as a suspended machine's memory. */
async function store(): Promise<{ key: string; bytes: number; memory: Buffer }> {
  const [disk, memory] = ["disk", "saved/memory"].map((name) => join(place, name)) as [string, string];
  await copyFile(join(place, "template"), disk);
  await rm(memory, { force: true });
  await copyFile(join(place, "base/memory"), memory, constants.COPYFILE_FICLONE_FORCE);
  const file = await open(memory, "r+");
  await file.write("changed", 5 * MIB);
  await file.close();
  const source = { dir: join(place, "saved"), cpuClass: "c", base: join(place, "base") };
  const { key, bytes } = await images.store(
    { record: record as TravellingRecord, disk, memory: source },
    signal,
  );
  return { key, bytes, memory: await readFile(memory) };
}

async function fetched(key: string, base?: string): Promise<Buffer> {
  await rm(join(place, "brought/memory"), { force: true });
  await images.fetchMemory(await images.open(key), join(place, "brought"), base, signal);
  return readFile(join(place, "brought/memory"));
}

describe("memory that was cloned from a file of the driver", () => {
  it("is stored as what differs, and fetched whole with or without such a file", async () => {
    const first = await store();
    expect(first.bytes).toBeLessThan(MEMORY_BYTES / 4);
    expect((await store()).bytes).toBeLessThan(MEMORY_BYTES / 4);
    expect((await fetched(first.key)).equals(first.memory)).toBe(true);
    expect((await fetched(first.key, join(place, "base"))).equals(first.memory)).toBe(true);
    await writeBase();
    expect((await fetched(first.key, join(place, "base"))).equals(first.memory)).toBe(true);
  });

  it("is what it was after the file was replaced", async () => {
    const first = await store();
    await writeBase();
    const second = await store();
    expect(second.bytes).toBeLessThan(MEMORY_BYTES / 4);
    expect((await fetched(second.key)).equals(second.memory)).toBe(true);
    expect((await fetched(first.key)).equals(first.memory)).toBe(true);
  });

  it("is not stored on a file that is replaced meanwhile", async () => {
    await store();
    const hold = names.hold.bind(names);
    // The second hold of a try is that of the memory's base.
    let holds = 0;
    names.hold = async (what) => {
      if ((holds += 1) === 2) await writeBase();
      await hold(what);
    };
    const error = await store().then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(ClocheError.from(error)).toMatchObject({ code: "unavailable", message: /replaced/ });
    names.hold = hold;
    const next = await store();
    expect((await fetched(next.key)).equals(next.memory)).toBe(true);
  });

  it("is not fetched out of a file that is replaced meanwhile", async () => {
    const { key, memory } = await store();
    const base = join(place, "base");
    const clone = vi.spyOn(native, "clone").mockImplementationOnce(async (from, to) => {
      await writeBase();
      await copyFile(from, to, constants.COPYFILE_FICLONE_FORCE);
    });
    const error = await fetched(key, base).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(clone).toHaveBeenCalledOnce();
    clone.mockRestore();
    expect(ClocheError.from(error)).toMatchObject({ code: "unavailable", message: /replaced/ });
    expect((await fetched(key, base)).equals(memory)).toBe(true);
  });

  it("is stored again on a base that is no longer in storage", async () => {
    await store();
    names.holds.clear();
    const error = await store().then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(ClocheError.from(error)).toMatchObject({ code: "failed_precondition" });
    const next = await store();
    expect((await fetched(next.key)).equals(next.memory)).toBe(true);
  });
});
