/** A manifest of a few KiB that unpacks to millions of entries. */
import { createHash } from "node:crypto";
import { constants, createZstdCompress } from "node:zlib";
import { expect, it } from "vitest";
import { sampleHeader } from "../testing/sample-checkpoint.ts";
import {
  type Chunk,
  type CheckpointHeader,
  chunkBytes,
  decodeManifest,
  encodeManifest,
  manifestCaps,
} from "./manifest.ts";

const packs = [{ id: `pack-${"a".repeat(20)}`, bytes: 1_000 }];
const manifestOf = (chunk: Chunk, count: number): Promise<Buffer> =>
  encodeManifest({
    header: sampleHeader({ disk_bytes: count * chunkBytes }),
    packs,
    chunks: Array.from({ length: count }, () => chunk),
  });

const all = { pack: 0, offset: 0, storedBytes: 9, sha256: Buffer.alloc(32) };

it("is read without holding up other work", async () => {
  const count = 1_000_000;
  const data = await manifestOf(all, count);
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
  expect(manifest.chunkCount).toBe(count);
  // In one turn, reading the entries was three quarters of the time.
  expect(longestMs / tookMs).toBeLessThan(0.4);
});

it("takes little memory, also while its chunks are read and as long as it is kept", async () => {
  // 256 GiB; its table has 48 MiB, and as objects it took 330 MB.
  const count = manifestCaps.diskBytes / chunkBytes / 4;
  const data = await manifestOf(all, count);
  let most = 0;
  const held = (): number => {
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    most = Math.max(most, heapUsed + arrayBuffers);
    return heapUsed + arrayBuffers;
  };
  const before = held();
  const looking = setInterval(held, 5);
  const manifest = await decodeManifest(data);
  let seen = 0;
  for await (const chunks of manifest.chunks()) {
    seen += chunks.length;
    held();
  }
  clearInterval(looking);
  expect(seen).toBe(count);
  expect(most - before).toBeLessThan(128 * 1024 * 1024);
}, 60_000);

it("is refused where its table is longer than its disk, or keeps much to be unpacked", async () => {
  const count = 1_000;
  const good = await manifestOf(all, count);
  const longer = await manifestOf(all, count + 1);
  const headerOf = (data: Buffer): Buffer => data.subarray(20, 20 + data.readUInt32LE(12));
  const seal = (table: Buffer): Buffer => {
    const prefix = Buffer.from(good.subarray(0, 20));
    prefix.writeUInt32LE(table.length, 16);
    const body = Buffer.concat([prefix, headerOf(good), table]);
    return Buffer.concat([body, createHash("sha256").update(body).digest()]);
  };
  const table = longer.subarray(20 + longer.readUInt32LE(12), -32);
  await expect(decodeManifest(seal(table))).rejects.toThrow("wrong length");
  const params = { [constants.ZSTD_c_windowLog]: 26, [constants.ZSTD_c_contentSizeFlag]: 0 };
  const wide = createZstdCompress({ params });
  wide.end(Buffer.alloc(count * 48));
  const parts: Buffer[] = [];
  for await (const part of wide) parts.push(part as Buffer);
  await expect(decodeManifest(seal(Buffer.concat(parts)))).rejects.toThrow("does not unpack");
});

it("is read where it is of the largest disk, full of what cannot be compressed", async () => {
  const { diskBytes, packs: most } = manifestCaps;
  const id = (at: number): string => `pack-${at.toString(36).padStart(20, "0")}`;
  const full = Array.from({ length: most }, (_, at) => ({
    id: id(at),
    bytes: 32 * 1024 * 1024 + 2 * chunkBytes,
  }));
  expect(full.length * 32 * 1024 * 1024).toBeGreaterThan(diskBytes);
  const data = await encodeManifest({ header: sampleHeader(), packs: full, chunks: [] });
  expect((await decodeManifest(data)).packs).toEqual(full);
});

it("is refused where its names are endless", async () => {
  const whole = (fields: Partial<CheckpointHeader>): Promise<Buffer> =>
    encodeManifest({ header: sampleHeader(fields), packs, chunks: [] });
  await expect(decodeManifest(await whole({ name: "n".repeat(10_000) }))).rejects.toThrow("name is too long");
  const services = [Array.from({ length: 10_001 }, () => "s"), ["s".repeat(300)]];
  for (const running_services of services)
    await expect(decodeManifest(await whole({ running_services }))).rejects.toThrow("no running_services");
});

it("is refused where its header has more values than any, or is none", async () => {
  const values = { values: Array.from({ length: 250_000 }, () => 0) } as Partial<CheckpointHeader>;
  const data = await encodeManifest({ header: sampleHeader(values), packs, chunks: [] });
  await expect(decodeManifest(data)).rejects.toThrow("header is no JSON");
  const prefix = Buffer.from(data.subarray(0, 20));
  prefix.writeUInt32LE(4, 12);
  const body = Buffer.concat([prefix, Buffer.from("null"), data.subarray(20 + data.readUInt32LE(12), -32)]);
  const sealed = Buffer.concat([body, createHash("sha256").update(body).digest()]);
  await expect(decodeManifest(sealed)).rejects.toThrow("header has no id");
});

it("is refused where a chunk has no bytes", async () => {
  const data = await manifestOf({ pack: 0, offset: 0, storedBytes: 0, sha256: Buffer.alloc(32) }, 1);
  await expect(decodeManifest(data)).rejects.toThrow("a chunk lies outside its pack");
});
