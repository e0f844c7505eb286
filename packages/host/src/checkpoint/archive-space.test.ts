/** A checkpoint that is larger than the pool. */
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { zstdCompressSync } from "node:zlib";
import { ClocheError } from "@cloche/protocol";
import { expect, it } from "vitest";
import { sampleHeader } from "../testing/sample-checkpoint.ts";
import { CheckpointArchive, type ArchiveOptions } from "./archive.ts";
import { chunkBytes, decodeManifest, encodeManifest } from "./manifest.ts";

it("ends before it takes the pool's reserve, and leaves nothing", async () => {
  const folder = await mkdtemp(join(tmpdir(), "cloche-archive-"));
  const raw = Buffer.alloc(chunkBytes, "a");
  const stored = zstdCompressSync(raw);
  const sha256 = Buffer.from(await crypto.subtle.digest("SHA-256", raw));
  const count = 64;
  let looks = 0;
  const archive = new CheckpointArchive({
    blobs: { get: async () => stored } as unknown as ArchiveOptions["blobs"],
    native: {} as ArchiveOptions["native"],
    randomBytes,
    nowMs: () => 0,
    // The target lies in a folder of the pool, beside which nothing tells how full the disk below is.
    poolDir: "/pool",
    async requireSpace(place) {
      expect(place).toBe("/pool");
      looks += 1;
      if (looks === 3) throw new ClocheError("resource_exhausted", "the host's disk pool is full");
    },
  });
  const header = sampleHeader({ disk_bytes: count * chunkBytes, disk_mb: 16 });
  const packs = [{ id: `pack-${"a".repeat(20)}`, bytes: stored.length }];
  const chunk = { pack: 0, offset: 0, storedBytes: stored.length, sha256 };
  const chunks = Array.from({ length: count }, () => chunk);
  const manifest = await decodeManifest(await encodeManifest({ header, packs, chunks }));
  const made = archive.materialise(manifest, join(folder, "disk.img"));
  await expect(made).rejects.toMatchObject({ code: "resource_exhausted" });
  expect(looks).toBe(3);
  expect(await readdir(folder)).toEqual([]);
  await rm(folder, { recursive: true });
});
