/**
 * Two hosts of a cluster and one storage: uploads that inherit from each other, deletes of what the other took, restarts, failing
 * storage and sweeps, in random order. After each burst every visible checkpoint reads whole, and at the end nothing stays
 * that no row names. `CLOCHE_STORAGE_ROUNDS` runs more; `CLOCHE_STORAGE_SEED` replays.
 */
import { createHash, randomBytes } from "node:crypto";
import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog, systemClock } from "@cloche/base";
import { type Database, storageService } from "@cloche/gateway";
import { ClocheError } from "@cloche/protocol";
import { HostStorageService } from "@cloche/protocol/host-registry";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { CheckpointArchive } from "../../packages/host/src/checkpoint/archive.ts";
import { CheckpointCatalogue } from "../../packages/host/src/checkpoint/catalogue.ts";
import { gatewayNames } from "../../packages/host/src/checkpoint/gateway-names.ts";
import { chunkBytes } from "../../packages/host/src/checkpoint/manifest.ts";
import { StorageSweeper } from "../../packages/host/src/checkpoint/storage-sweeper.ts";
import type { Native } from "../../packages/host/src/sys/native.ts";
import { databaseKinds, nowMs } from "./database-kinds.ts";

const rounds = Number(process.env["CLOCHE_STORAGE_ROUNDS"] || 20);
const seed = process.env["CLOCHE_STORAGE_SEED"] || randomBytes(6).toString("hex");
const team = "team-a";
const CHUNKS = 5;
const WEEK_MS = 7 * 24 * 3_600_000;

/** The same numbers for the same seed. */
class Dice {
  #count = 0;
  readonly #seed: string;
  constructor(text: string) {
    this.#seed = text;
  }
  /** 0 to `sides` - 1. */
  roll(sides: number): number {
    const digest = createHash("sha256")
      .update(`${this.#seed} ${(this.#count += 1)}`)
      .digest();
    return digest.readUInt32LE(0) % sides;
  }
}

/** A pool whose files share what is equal. */
const native = {
  clone: (from: string, to: string) => copyFile(from, to),
  chunkMap: async (image: string, base: string | undefined, out: string) => {
    const data = await readFile(image);
    const of = base === undefined ? undefined : await readFile(base);
    const mark = (at: number): string => {
      const chunk = data.subarray(at, at + chunkBytes);
      if (of !== undefined && chunk.equals(of.subarray(at, at + chunkBytes))) return "=";
      return chunk.every((byte) => byte === 0) ? "0" : "d";
    };
    const marks = Array.from({ length: CHUNKS }, (_, index) => mark(index * chunkBytes)).join("");
    await writeFile(out, marks);
    return marks.length;
  },
  extents: async () => ({ count: 1, allocatedBytes: 1, exclusiveBytes: 1 }),
} as unknown as Native;

const archiveOf = (blobs: BlobStore, poolDir: string): CheckpointArchive =>
  new CheckpointArchive({ blobs, native, randomBytes, nowMs: () => Date.now(), poolDir });

/** Storage that fails now and then, before or after it took effect. */
function troubled(store: BlobStore, dice: Dice, isOn: () => boolean): BlobStore {
  const failing = async <T>(body: () => Promise<T>): Promise<T> => {
    const fate = isOn() ? dice.roll(12) : 12;
    if (fate === 0) throw new ClocheError("unavailable", "storage is away");
    const value = await body();
    if (fate === 1) throw new ClocheError("unavailable", "the answer was lost");
    return value;
  };
  return {
    put: (key, data) => failing(() => store.put(key, data)),
    get: (key, range) => failing(() => store.get(key, range)),
    delete: (key) => store.delete(key),
    list: (prefix) => store.list(prefix),
  };
}

describe.each(databaseKinds)("on $name", (kind) => {
  let db: Database;
  let dir: string;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "cloche-rounds-"));
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: team, name: "A", createdAtMs: nowMs });
  });
  afterEach(async () => {
    await db.close();
    await rm(dir, { recursive: true, force: true });
  });

  it(`${rounds} rounds of uploads and deletes on two hosts, seed ${seed}`, {
    timeout: 60_000 + rounds * 2_000,
  }, async () => {
    const dice = new Dice(seed);
    let isTroubled = true;
    const plain = await openDirectoryStore(join(dir, "blobs"));
    const blobs = troubled(plain, dice, () => isTroubled);
    const limits = {
      templateHoldMs: WEEK_MS,
      storageHoldMs: WEEK_MS,
      sweepLeaseMs: -1,
      sweepListMs: 0,
      sweepBatch: 1_000,

      // Nobody reads what is dropped, here.
      storageGarbageMs: -1_000,
    };
    const namesOf = (hostId: string) =>
      gatewayNames(
        createClient(
          HostStorageService,
          createRouterTransport((router) => {
            router.service(
              HostStorageService,
              storageService(db, () => hostId, limits),
            );
          }),
        ),
      );
    /** Each host builds its own template: one chunk of it differs. */
    const templateOf = async (hostId: string): Promise<string> => {
      const image = Buffer.alloc(CHUNKS * chunkBytes);
      createHash("sha512").update("all").digest().copy(image, 0);
      createHash("sha512").update(hostId).digest().copy(image, chunkBytes);
      const path = join(dir, `template-${hostId}`);
      await writeFile(path, image);
      return path;
    };
    const open = async (hostId: string) => {
      const place = join(dir, hostId);
      await mkdir(place, { recursive: true });
      const template = await templateOf(hostId);
      const catalogue = new CheckpointCatalogue({
        dir: place,
        archive: archiveOf(blobs, place),
        template: { name: "t", image: async () => template },
        names: namesOf(hostId),
        localImages: 3,
        exclusiveBytes: async () => 1,
        nowMs: () => Date.now(),
        randomBytes,
        log: silentLog,
        retryMs: 1,
      });
      await catalogue.start();
      return { hostId, catalogue, template };
    };
    const hosts = [await open("host-1"), await open("host-2")];
    const disks = new Map<string, Buffer>();
    const anyHost = () => hosts[dice.roll(hosts.length)] as (typeof hosts)[number];

    const take = async (): Promise<void> => {
      const { catalogue, template, hostId } = anyHost();
      const sandbox = `sbx-${hostId}-${dice.roll(2)}`;
      const [newest] = catalogue.list(team, sandbox).filter(({ local }) => local);
      const reservation = await catalogue.reserve();
      const from = newest ? join(dir, hostId, newest.id, "disk.img") : template;
      const disk = await readFile(from).catch(() => readFile(template));
      const at = dice.roll(CHUNKS) * chunkBytes;
      if (dice.roll(5) === 0) disk.fill(0, at, at + chunkBytes);
      else disk.writeUInt32LE(dice.roll(2 ** 31), at);
      await writeFile(reservation.image, disk);
      const header = {
        name: "c",
        team_id: team,
        sandbox_id: sandbox,
        size_bytes: 1,
        runtime: "gvisor",
        disk_bytes: disk.length,
        disk_mb: 1,
        running_services: [],
      };
      disks.set((await catalogue.commit(reservation, header, "")).id, disk);
    };
    const remove = async (): Promise<void> => {
      const ids = [...disks.keys()];
      const id = ids[dice.roll(ids.length)];
      if (id === undefined) return;
      await anyHost()
        .catalogue.delete(team, id)
        .then(
          () => disks.delete(id),
          // Its upload is under way on the other host, or storage failed: it stays.
          (error: unknown) => {
            if (!["not_found", "unavailable"].includes(ClocheError.from(error).code)) throw error;
          },
        );
    };
    const restart = async (): Promise<void> => {
      const at = dice.roll(hosts.length);
      const { hostId, catalogue } = hosts[at] as (typeof hosts)[number];
      await catalogue.stop();
      hosts[at] = await open(hostId);
    };
    const sweep = (nowMsOf = (): number => Date.now()): Promise<number> =>
      new StorageSweeper({
        blobs: plain,
        calls: namesOf(anyHost().hostId),
        log: silentLog,
        clock: { ...systemClock, nowMs: nowMsOf },
      }).sweep();
    const verify = async (): Promise<void> => {
      const [first] = hosts;
      const { checkpoints } = (await first?.catalogue.page(team, "", { limit: 10_000 })) ?? {
        checkpoints: [],
      };
      const visible = checkpoints.filter((one) => one.visible);
      expect(visible.map(({ id }) => id).toSorted()).toEqual([...disks.keys()].toSorted());
      const reader = archiveOf(plain, dir);
      for (const { id } of visible) {
        const manifest = await reader.read(id);
        const target = join(dir, "read");
        if (manifest === undefined) throw new Error(`${id} is visible and not in storage`);
        await reader.materialise(manifest, target);
        expect((await readFile(target)).equals(disks.get(id) ?? Buffer.of())).toBe(true);
        await rm(target);
      }
      // And by the way that a restore takes on the other host.
      const one = visible[dice.roll(Math.max(1, visible.length))];
      if (one === undefined) return;
      const leased = await anyHost().catalogue.lease(team, one.id);
      expect((await readFile(leased.image)).equals(disks.get(one.id) ?? Buffer.of())).toBe(true);
      leased.release();
    };

    const acts = [take, take, take, take, remove, remove, restart, () => sweep().then(() => undefined)];
    for (let round = 0; round < rounds; round += 1) {
      const burst = Array.from({ length: 1 + dice.roll(4) }, () => acts[dice.roll(acts.length)] ?? take);
      // A restart waits for no one, but two of one host at once are no two hosts.
      if (burst.includes(restart)) for (const act of burst) await act();
      else await Promise.all(burst.map((act) => act()));
      if (round % 10 !== 9) continue;
      isTroubled = false;
      for (const { catalogue } of hosts) await catalogue.settled();
      await verify();
      isTroubled = true;
    }
    isTroubled = false;
    for (const { catalogue } of hosts) await catalogue.settled();
    await verify();
    await sweep(() => Date.now() + WEEK_MS);
    await verify();
    for (const id of disks.keys()) await hosts[0]?.catalogue.delete(team, id);
    await sweep(() => Date.now() + WEEK_MS);
    // What is left belongs to the templates.
    const left = (await plain.list("")).map(({ key }) => key);
    const manifests = left.filter((key) => !key.startsWith("packs/"));
    expect(manifests.every((key) => key.startsWith("checkpoints/template-"))).toBe(true);
    const archive = archiveOf(plain, dir);
    const known = await Promise.all(manifests.map((key) => archive.read(key.slice("checkpoints/".length))));
    const needed = new Set(
      known.flatMap((manifest) => (manifest?.packs ?? []).map(({ id }) => `packs/${id}`)),
    );
    const packs = left.filter((key) => key.startsWith("packs/"));
    expect(packs.filter((key) => !needed.has(key))).toEqual([]);
    for (const key of needed) expect(packs).toContain(key);
    for (const { catalogue } of hosts) await catalogue.stop();
  });
});
