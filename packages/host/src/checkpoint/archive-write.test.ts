/** A checkpoint whose manifest could not be read again. */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { openDirectoryStore } from "../blob/directory-store.ts";
import type { Native } from "../sys/native.ts";
import { sampleHeader } from "../testing/sample-checkpoint.ts";
import { CheckpointArchive } from "./archive.ts";
import { chunkBytes, ManifestError } from "./manifest.ts";

let folder = "";
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-archive-"));
});
afterEach(async () => await rm(folder, { recursive: true }));

it("is not stored, and leaves no pack, however often it is tried", async () => {
  const image = join(folder, "disk.img");
  await writeFile(image, randomBytes(chunkBytes));
  const blobs = await openDirectoryStore(join(folder, "storage"));
  const native = {
    chunkMap: async (_image: string, _base: string | undefined, out: string) => await writeFile(out, "d"),
  } as unknown as Native;
  const archive = new CheckpointArchive({ blobs, native, randomBytes, nowMs: Date.now, poolDir: folder });
  const header = sampleHeader({ disk_bytes: chunkBytes, running_services: ["s".repeat(1_000)] });
  const write = async (): Promise<unknown> =>
    await archive.write(header, image, undefined, new AbortController().signal);
  await expect(write()).rejects.toThrow(ManifestError);
  await expect(write()).rejects.toThrow(ManifestError);
  expect(await blobs.list("")).toEqual([]);
});
