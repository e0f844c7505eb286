/** Checkpoints on a real reflink pool: what is stored, what is shared, what a crash or damage leaves. */
import { randomBytes } from "node:crypto";
import { mkdtemp, open, readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { afterAll, beforeAll, beforeEach, afterEach, describe, expect, it } from "vitest";
import { obtainNative } from "../../packages/artifacts/src/programs/programs.ts";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { CheckpointArchive } from "../../packages/host/src/checkpoint/archive.ts";
import { CheckpointCatalogue } from "../../packages/host/src/checkpoint/catalogue.ts";
import {
  chunkBytes,
  decodeManifest,
  encodeManifest,
  type ManifestDraft,
} from "../../packages/host/src/checkpoint/manifest.ts";
import { closePool, openPool, type Pool } from "../../packages/host/src/pool/pool.ts";
import { Native } from "../../packages/host/src/sys/native.ts";
import { allChunks, sampleHeader } from "../../packages/host/src/testing/sample-checkpoint.ts";

const diskMb = 64;
const team = "team-a";
const progress = (): void => undefined;
let home = "";
let pool: Pool;
let native: Native;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-checkpoint-"));
  pool = await openPool({ home, sizeBytes: 3 * 1024 ** 3, progress });
  native = new Native(await obtainNative(process.env["CLOCHE_CACHE"] ?? join(home, "cache"), progress));
});
afterAll(async () => {
  await native?.close();
  await closePool(home);
  await rm(home, { recursive: true, force: true });
});

/** A blob store that can be told to fail, and counts what is written. */
class TroubledStore implements BlobStore {
  readonly inner: BlobStore;
  putBytes = 0;
  failPuts = 0;
  /** Blobs whose write is done, and answered as failed. */
  failAfterPut: ((key: string) => boolean) | undefined;
  /** What reads give instead of what is there; undefined: the truth. */
  spoil: ((data: Uint8Array | undefined) => Uint8Array | undefined) | undefined;
  constructor(inner: BlobStore) {
    this.inner = inner;
  }
  async put(key: string, data: Uint8Array): Promise<void> {
    if (this.failPuts > 0) {
      this.failPuts -= 1;
      throw new Error("storage is down");
    }
    this.putBytes += data.length;
    await this.inner.put(key, data);
    if (this.failAfterPut?.(key)) throw new ClocheError("unavailable", "the answer was lost");
  }
  get: BlobStore["get"] = async (key, range) => {
    const data = await this.inner.get(key, range);
    return this.spoil === undefined ? data : this.spoil(data);
  };
  delete: BlobStore["delete"] = (key) => this.inner.delete(key);
  list: BlobStore["list"] = (prefix) => this.inner.list(prefix);
}

function storageIsDown(): never {
  throw new ClocheError("unavailable", "storage is down");
}

/** Gives what was asked for before, where that is as long. */
function swapped(): (data: Uint8Array | undefined) => Uint8Array | undefined {
  let last: Uint8Array | undefined;
  return (data) => {
    const given = last?.length === data?.length ? last : data;
    last = data;
    return given;
  };
}

let blobFolder = "";
let blobs: TroubledStore;
let checkpointDir = "";
let template = "";
let catalogue: CheckpointCatalogue;
let round = 0;
/** How far the catalogue's clock is ahead of the store's. */
let aheadMs = 0;
/** Of the base that this host has. */
let templateName = "t1";
const dayMs = 24 * 3_600_000;

const archiveAt = (nowMs: () => number): CheckpointArchive =>
  new CheckpointArchive({ blobs, native, randomBytes, nowMs, poolDir: pool.dir });

async function openCatalogue(localImages = 10): Promise<CheckpointCatalogue> {
  const opened = new CheckpointCatalogue({
    dir: checkpointDir,
    archive: archiveAt(() => Date.now() + aheadMs),
    template: { name: templateName, image: async () => template },
    localImages,
    exclusiveBytes: async (image) => (await native.extents(image)).exclusiveBytes,
    nowMs: () => Date.now(),
    randomBytes,
    log: silentLog,
    retryMs: 5,
  });
  await opened.start();
  return opened;
}

beforeEach(async () => {
  round += 1;
  aheadMs = 0;
  templateName = "t1";
  blobFolder = join(home, `blobs-${round}`);
  blobs = new TroubledStore(await openDirectoryStore(blobFolder));
  checkpointDir = join(pool.dir, `checkpoints-${round}`);
  template = join(pool.dir, `template-${round}.img`);
  const file = await open(template, "wx");
  await file.truncate(diskMb * 1024 * 1024);
  await file.write(randomBytes(8 * 1024 * 1024), 0, undefined, 1024 * 1024);
  await file.sync();
  await file.close();
  catalogue = await openCatalogue();
});
afterEach(async () => {
  await catalogue.stop();
  await rm(checkpointDir, { recursive: true, force: true });
  await rm(blobFolder, { recursive: true, force: true });
  await rm(template, { force: true });
});

async function take(disk: string, sandbox = "sbx-1", name = "one"): Promise<string> {
  const reservation = await catalogue.reserve();
  await native.clone(disk, reservation.image);
  const info = await catalogue.commit(
    reservation,
    {
      name,
      team_id: team,
      sandbox_id: sandbox,
      size_bytes: 1,
      runtime: "gvisor",
      disk_bytes: diskMb * 1024 * 1024,
      disk_mb: diskMb,
      running_services: ["web"],
    },
    "",
  );
  return info.id;
}

async function newDisk(): Promise<string> {
  const disk = join(pool.dir, `disk-${round}-${randomBytes(4).toString("hex")}.img`);
  await native.clone(template, disk);
  return disk;
}

async function scribble(disk: string, offset: number, data: Uint8Array): Promise<void> {
  const file = await open(disk, "r+");
  await file.write(data, 0, data.length, offset);
  await file.sync();
  await file.close();
}

const packsStored = async (): Promise<string[]> => (await blobs.list("packs/")).map((entry) => entry.key);

describe("checkpoint catalogue", () => {
  it("lists at once, becomes visible, and gives back every byte", async () => {
    const disk = await newDisk();
    await scribble(disk, 30 * 1024 * 1024 + 17, Buffer.from("a write answered before the call"));
    const id = await take(disk);
    expect(catalogue.list(team).map((info) => info.id)).toEqual([id]);
    await catalogue.settled();
    expect(catalogue.get(team, id)).toMatchObject({ visible: true, running_services: ["web"] });

    await rm(join(checkpointDir, id, "disk.img"));
    const again = await openCatalogue();
    (again.get(team, id) as { local: boolean }).local = false;
    const leased = await again.lease(team, id);
    expect((await readFile(leased.image)).equals(await readFile(disk))).toBe(true);
    leased.release();
    await again.stop();
  });

  it("is listed in pages, newest first, each checkpoint once", async () => {
    const disk = await newDisk();
    const ids = [await take(disk), await take(disk, "sbx-1", "two"), await take(disk, "sbx-1", "three")];
    const newestFirst = catalogue.list(team, "sbx-1").map((info) => info.id);
    expect([...newestFirst].sort()).toEqual([...ids].sort());
    const seen: string[] = [];
    let after: Awaited<ReturnType<typeof catalogue.page>>["next"];
    do {
      const page = await catalogue.page(team, "sbx-1", { limit: 2, after });
      seen.push(...page.checkpoints.map((info) => info.id));
      after = page.next;
    } while (after !== undefined);
    expect(seen).toEqual(newestFirst);
    expect((await catalogue.page(team, "sbx-1", { limit: 3 })).next).toBeUndefined();
  });

  it("stores the template once and then only what differs", async () => {
    const disk = await newDisk();
    await take(disk);
    await catalogue.settled();
    const first = blobs.putBytes;
    expect(first).toBeGreaterThan(8 * 1024 * 1024);
    await scribble(disk, 40 * 1024 * 1024, randomBytes(1024 * 1024));
    await take(disk, "sbx-1", "two");
    await catalogue.settled();
    expect(blobs.putBytes - first).toBeLessThan(1.5 * 1024 * 1024 + 100_000);
    await take(disk, "sbx-1", "three");
    const before = blobs.putBytes;
    await catalogue.settled();
    expect(blobs.putBytes - before).toBeLessThan(50_000);
  });

  it("frees what only the deleted one used, and keeps what others need", async () => {
    const disk = await newDisk();
    await take(disk);
    await catalogue.settled();
    const atFirst = await packsStored();
    await scribble(disk, 40 * 1024 * 1024, randomBytes(2 * 1024 * 1024));
    const second = await take(disk, "sbx-1", "two");
    const third = await take(disk, "sbx-1", "three");
    await catalogue.settled();
    expect(await catalogue.delete(team, second)).toBeLessThan(50_000);
    const leased = await catalogue.lease(team, third);
    leased.release();
    expect(await catalogue.delete(team, third)).toBeGreaterThan(2 * 1024 * 1024);
    expect(await packsStored()).toEqual(atFirst);
    expect(() => catalogue.get(team, third)).toThrow("does not exist");
    expect(await readdir(checkpointDir)).toHaveLength(1);
  });

  it("goes on uploading after storage was down, and after a kill", async () => {
    const disk = await newDisk();
    blobs.failPuts = 3;
    const id = await take(disk);
    await catalogue.settled();
    expect(catalogue.get(team, id).visible).toBe(true);

    blobs.failPuts = Number.POSITIVE_INFINITY;
    const other = await take(disk, "sbx-2");
    await catalogue.stop(); // as a kill: nothing is uploaded, the record says so
    blobs.failPuts = 0;
    catalogue = await openCatalogue();
    expect(catalogue.get(team, other).visible).toBe(false);
    await catalogue.settled();
    expect(catalogue.get(team, other).visible).toBe(true);
  });

  it("sweeps packs that nobody names for a day, and reservations without a whole record", async () => {
    await take(await newDisk());
    await catalogue.settled();
    const packs = await packsStored();
    const left = "packs/pack-00000000000000000000";
    await blobs.put(left, Buffer.from("left by a kill, or of an upload under way elsewhere"));
    await catalogue.reserve();
    const torn = await catalogue.reserve();
    await writeFile(join(checkpointDir, torn.id, "record.json"), '{"id":"ckpt-');
    for (const [ahead, expected] of [
      [dayMs - 60_000, [left, ...packs]],
      [dayMs + 60_000, packs],
    ] as const) {
      await catalogue.stop();
      aheadMs = ahead;
      catalogue = await openCatalogue();
      expect(await packsStored()).toEqual([...expected].sort());
    }
    expect(await readdir(checkpointDir)).toHaveLength(1);
  });

  it("sweeps templates that this host has no more, after a day, and keeps what checkpoints share with them", async () => {
    const disk = await newDisk();
    const id = await take(disk);
    await catalogue.settled();
    const kept = (await blobs.list("checkpoints/")).map(({ key }) => key);
    expect(kept).toContain(`checkpoints/template-t1-${diskMb}`);
    for (const [name, ahead, expected] of [
      ["t1", dayMs + 60_000, kept],
      // An update made another.
      ["t2", dayMs - 60_000, kept],
      ["t2", dayMs + 60_000, [`checkpoints/${id}`]],
    ] as const) {
      await catalogue.stop();
      templateName = name;
      aheadMs = ahead;
      catalogue = await openCatalogue();
      expect((await blobs.list("checkpoints/")).map(({ key }) => key)).toEqual(expected);
    }
    const packs = catalogue.get(team, id).packs.map((pack) => `packs/${pack.id}`);
    expect(await packsStored()).toEqual(packs.sort());
    await rm(join(checkpointDir, id, "disk.img"));
    const leased = await catalogue.lease(team, id);
    leased.release();
  });

  it("sweeps nothing while a checkpoint in storage cannot be read: its packs are not known", async () => {
    await take(await newDisk());
    await catalogue.settled();
    const left = "packs/pack-00000000000000000000";
    await blobs.put(left, Buffer.from("left by a kill"));
    await blobs.put(`checkpoints/ckpt-${"9".repeat(20)}`, Buffer.from("of a newer release"));
    await catalogue.stop();
    aheadMs = dayMs + 60_000;
    catalogue = await openCatalogue();
    expect(await packsStored()).toContain(left);
  });

  it("keeps what a checkpoint needs that was seeded from the deleted one and is not known here", async () => {
    const disk = await newDisk();
    await scribble(disk, 40 * 1024 * 1024, randomBytes(2 * 1024 * 1024));
    const first = await take(disk);
    const second = await take(disk, "sbx-1", "two");
    await catalogue.settled();
    const packs = await packsStored();
    await catalogue.stop();
    // Its record is of another service, and storage fails while this one starts.
    await rm(join(checkpointDir, second), { recursive: true });
    blobs.spoil = storageIsDown;
    catalogue = await openCatalogue();
    blobs.spoil = undefined;
    await catalogue.delete(team, first);
    expect(await packsStored()).toEqual(packs);
    await catalogue.stop();
    catalogue = await openCatalogue();
    const leased = await catalogue.lease(team, second);
    expect((await readFile(leased.image)).equals(await readFile(disk))).toBe(true);
    leased.release();
  });

  it("a deletion that storage did not hear of is refused, and finished by the next start", async () => {
    const id = await take(await newDisk());
    await catalogue.settled();
    blobs.spoil = storageIsDown;
    await expect(catalogue.delete(team, id)).rejects.toMatchObject({ code: "unavailable" });
    expect(catalogue.list(team)).toEqual([]);
    blobs.spoil = undefined;
    await catalogue.stop();
    catalogue = await openCatalogue();
    await expect.poll(() => blobs.list("checkpoints/ckpt-")).toEqual([]);
    expect(catalogue.list(team)).toEqual([]);
  });

  it("keeps the packs of a manifest that was written though its write failed", async () => {
    blobs.failAfterPut = (key) => {
      if (!key.startsWith("checkpoints/ckpt-")) return false;
      blobs.failPuts = Number.POSITIVE_INFINITY;
      return true;
    };
    const disk = await newDisk();
    await scribble(disk, 40 * 1024 * 1024, randomBytes(1024 * 1024));
    const id = await take(disk);
    await expect.poll(() => blobs.failPuts).not.toBe(0);
    await catalogue.stop();
    const archive = archiveAt(Date.now);
    const packs = (await archive.read(id))?.packs.map((pack) => `packs/${pack.id}`) ?? [];
    expect(packs.length).toBeGreaterThan(0);
    expect(await packsStored()).toEqual(expect.arrayContaining(packs));
    blobs.failAfterPut = undefined;
    blobs.failPuts = 0;
    catalogue = await openCatalogue();
    await catalogue.settled();
    expect(catalogue.get(team, id).visible).toBe(true);
  });

  it("drops old images from the pool, fetches them again, and never one in use", async () => {
    await catalogue.stop();
    catalogue = await openCatalogue(1);
    const disk = await newDisk();
    const first = await take(disk);
    await catalogue.settled();
    const leased = await catalogue.lease(team, first);
    const second = await take(disk, "sbx-1", "two");
    const third = await take(disk, "sbx-1", "three");
    await catalogue.settled();
    await stat(leased.image);
    leased.release();
    expect([catalogue.get(team, second).local, catalogue.get(team, third).local]).toEqual([false, true]);
    const fetched = await catalogue.lease(team, second);
    expect((await readFile(fetched.image)).equals(await readFile(disk))).toBe(true);
    fetched.release();
  });

  it.each<[string, (data: Uint8Array | undefined) => Uint8Array | undefined, object]>([
    ["errors", storageIsDown, { code: "unavailable" }],
    ["nothing", () => undefined, { code: "failed_precondition" }],
    ["less than was asked for", (data) => data?.subarray(0, -1), { code: "failed_precondition" }],
    ["garbage", (data) => data && randomBytes(data.length), { code: "failed_precondition" }],
    [
      "one wrong bit",
      (data) => {
        const wrong = Uint8Array.from(data ?? []);
        wrong[wrong.length >> 1] = (wrong[wrong.length >> 1] ?? 0) ^ 1;
        return wrong;
      },
      { code: "failed_precondition" },
    ],
    // Chunks of random bytes all take the same room: each unpacks, and is another's.
    ["another chunk", swapped(), { code: "failed_precondition" }],
  ])(
    "storage that reads %s is told as such, leaves nothing half fetched, and is forgiven",
    async (_, spoil, failure) => {
      await catalogue.stop();
      catalogue = await openCatalogue(1);
      const disk = await newDisk();
      await scribble(disk, 5 * 1024 * 1024, randomBytes(1024 * 1024));
      const evicted = await take(disk);
      await catalogue.settled();
      await take(disk, "sbx-1", "two");
      await catalogue.settled();
      expect(catalogue.get(team, evicted).local).toBe(false);
      blobs.spoil = spoil;
      await expect(catalogue.lease(team, evicted)).rejects.toMatchObject(failure);
      expect(await readdir(join(checkpointDir, evicted))).toEqual(["record.json"]);
      blobs.spoil = undefined;
      const fetched = await catalogue.lease(team, evicted);
      expect((await readFile(fetched.image)).equals(await readFile(disk))).toBe(true);
      fetched.release();
    },
  );

  it("a deletion waits for its reader, and another team's is not found", async () => {
    const id = await take(await newDisk());
    await catalogue.settled();
    await expect(catalogue.lease("team-b", id)).rejects.toMatchObject({ code: "not_found" });
    const leased = await catalogue.lease(team, id);
    let deleted = false;
    const deletion = catalogue.delete(team, id).then(() => {
      deleted = true;
    });
    expect((await readFile(leased.image)).length).toBe(diskMb * 1024 * 1024);
    expect(deleted).toBe(false);
    leased.release();
    await deletion;
    expect(catalogue.list(team)).toEqual([]);
  });

  it.each([
    ["truncated pack", async (file: string) => writeFile(file, (await readFile(file)).subarray(0, 5_000))],
    ["flipped bit in a pack", async (file: string) => flip(file, 100_000)],
    ["missing pack", (file: string) => rm(file)],
    [
      "manifest of a larger disk",
      async (_pack: string, id: string) => enlarge(join(blobFolder, "checkpoints", id)),
    ],
  ])("refuses a damaged checkpoint: %s", async (_what, damage) => {
    const id = await take(await newDisk());
    await catalogue.settled();
    for (const key of await packsStored()) await damage(join(blobFolder, key), id);
    await rm(join(checkpointDir, id, "disk.img"));
    (catalogue.get(team, id) as { local: boolean }).local = false;
    await expect(catalogue.lease(team, id)).rejects.toThrow(/checkpoint in storage is damaged/);
    expect(await readdir(join(checkpointDir, id))).toEqual(["record.json"]);
  });
});

/** Writes a whole manifest that says the disk has 1 TiB, all zeros. */
async function enlarge(file: string): Promise<void> {
  const { header, packs } = await decodeManifest(await readFile(file));
  const huge = { ...header, disk_bytes: 2 ** 40 };
  const chunks = Array.from({ length: 2 ** 40 / chunkBytes }, () => undefined);
  await writeFile(file, await encodeManifest({ header: huge, packs, chunks }));
}

async function flip(file: string, offset: number): Promise<void> {
  const data = await readFile(file);
  data[offset % data.length] = (data[offset % data.length] ?? 0) ^ 1;
  await writeFile(file, data);
}

describe("manifest", () => {
  const sample = (): ManifestDraft => ({
    header: sampleHeader({ size_bytes: 5, disk_bytes: 3 * chunkBytes + 10 }),
    packs: [{ id: "pack-00000000000000000000", bytes: 1_000 }],
    chunks: [
      undefined,
      { pack: 0, offset: 16, storedBytes: 100, sha256: randomBytes(32) },
      undefined,
      undefined,
    ],
  });

  it("reads what it wrote", async () => {
    const manifest = sample();
    const { header, packs, chunkCount, chunks } = await decodeManifest(await encodeManifest(manifest));
    expect({ header, packs }).toEqual({ header: manifest.header, packs: manifest.packs });
    expect(chunkCount).toBe(4);
    expect(await allChunks(chunks())).toEqual(manifest.chunks);
  });

  it("refuses every truncation and every flipped byte", async () => {
    const whole = await encodeManifest(sample());
    for (let length = 0; length < whole.length; length += 7) {
      await expect(decodeManifest(whole.subarray(0, length))).rejects.toThrow("damaged");
    }
    for (let at = 0; at < whole.length; at += 3) {
      const bent = Buffer.from(whole);
      bent[at] = (bent[at] ?? 0) ^ 0x40;
      await expect(decodeManifest(bent)).rejects.toThrow("damaged");
    }
  });

  it("refuses a well-signed manifest that points outside its packs or claims too much", async () => {
    const outside = sample();
    (outside.chunks[1] as { offset: number }).offset = 990;
    await expect(decodeManifest(await encodeManifest(outside))).rejects.toThrow("outside its pack");
    const huge = sample();
    huge.header.disk_bytes = 2 ** 50;
    await expect(decodeManifest(await encodeManifest(huge))).rejects.toThrow("too large");
    const unlisted = sample();
    (unlisted.chunks[1] as { pack: number }).pack = 4;
    await expect(decodeManifest(await encodeManifest(unlisted))).rejects.toThrow("does not list");
  });
});
