// A manifest of a few KiB that unpacks to millions of entries.
import { expect, it } from "vitest";
import { type Chunk, type CheckpointHeader, chunkBytes, decodeManifest, encodeManifest } from "./manifest.ts";

const header: CheckpointHeader = {
  id: "ckpt-a",
  name: "a",
  team_id: "team-a",
  sandbox_id: "sbx-a",
  created_at: "2026-01-01T00:00:00.000Z",
  size_bytes: 0,
  runtime: "gvisor",
  disk_bytes: 0,
  disk_mb: 1,
  running_services: [],
};
const packs = [{ id: `pack-${"a".repeat(20)}`, bytes: 1_000 }];
const manifestOf = (chunk: Chunk, count: number): Promise<Buffer> =>
  encodeManifest({
    header: { ...header, disk_bytes: count * chunkBytes },
    packs,
    chunks: Array.from({ length: count }, () => chunk),
  });

it("is read without holding up other work", async () => {
  const count = 1_000_000;
  const data = await manifestOf({ pack: 0, offset: 0, storedBytes: 9, sha256: Buffer.alloc(32) }, count);
  expect(data.length).toBeLessThan(64 * 1024);
  let [longestMs, lastMs] = [0, performance.now()];
  const turning = setInterval(() => {
    longestMs = Math.max(longestMs, performance.now() - lastMs);
    lastMs = performance.now();
  }, 1);
  const beganMs = performance.now();
  const manifest = await decodeManifest(data);
  const tookMs = performance.now() - beganMs;
  longestMs = Math.max(longestMs, performance.now() - lastMs);
  clearInterval(turning);
  expect(manifest.chunks.length).toBe(count);
  // In one turn, reading the entries was three quarters of the time.
  expect(longestMs / tookMs).toBeLessThan(0.4);
});

it("is refused where a chunk has no bytes", async () => {
  const data = await manifestOf({ pack: 0, offset: 0, storedBytes: 0, sha256: Buffer.alloc(32) }, 1);
  await expect(decodeManifest(data)).rejects.toThrow("a chunk lies outside its pack");
});
