/**
 * Every checkpoint this host knows. Owns `<pool>/checkpoints/<id>/`: `record.json` and, while it is recent, `disk.img`, a
 * reflink clone from which a restore is instant.
 *
 *   reserve ──(caller clones the disk)──▶ commit ──▶ taken ──upload──▶ visible ──evict──▶ visible, image in storage only
 *      └─ abandon                                      └───────────── delete ─────────────▶ (gone)
 *
 * Called by the host service and its checkpoint routes. Survives a crash: committed records; uploads begin again at start,
 * deletions (tombstones) are completed, reservations without a record are removed.
 */
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import {
  createDurably,
  type Log,
  readJsonFile,
  rfc3339,
  SerialQueue,
  syncFile,
  writeDurably,
} from "@cloche/base";
import {
  ClocheError,
  isBehind,
  isCheckpointId,
  type ListPosition,
  newCheckpointId,
  type RandomBytes,
} from "@cloche/protocol";
import type { BaseOfCheckpoint, CheckpointArchive } from "./archive.ts";
import type { CheckpointNames } from "./checkpoint-names.ts";
import { type CheckpointHeader, type Manifest, ManifestError, type PackReference } from "./manifest.ts";
import { type DiskTemplate, TEMPLATE, TemplateBases } from "./template-bases.ts";

export interface CheckpointOptions {
  /** `<pool>/checkpoints`. */
  dir: string;
  archive: CheckpointArchive;
  /** What disks start from. */
  template: DiskTemplate;
  /** Of a host in a cluster: what it finds in storage counts only where this names it. */
  names?: CheckpointNames;
  /** How many images stay on the pool after they are visible. */
  localImages: number;
  /** Called for each exclusive byte count that a deletion frees on the pool. */
  exclusiveBytes(image: string): Promise<number>;
  nowMs(): number;
  randomBytes: RandomBytes;
  log: Log;
  /** First wait before a failed upload is tried again; doubles up to a minute. */
  retryMs?: number;
}

/** What `record.json` holds. */
export interface CheckpointInfo extends CheckpointHeader {
  visible: boolean;
  /** `disk.img` is there. */
  local: boolean;
  /** Checkpoint whose image this disk may share blocks with; empty: the template. */
  parent: string;
  deleted: boolean;
  packs: PackReference[];
}

export interface Reservation {
  id: string;
  /** Where the caller clones the disk to. */
  image: string;
  abandon(): Promise<void>;
}

export interface LeasedImage {
  image: string;
  info: CheckpointInfo;
  release(): void;
}

interface Entry {
  info: CheckpointInfo;
  leases: number;
  upload: { abort: AbortController; done: Promise<void> } | undefined;
  onDrained: (() => void) | undefined;
}

const longestRetryMs = 60_000;

export class CheckpointCatalogue {
  readonly #options: CheckpointOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #queue = new SerialQueue();
  readonly #stopping = new AbortController();
  readonly #templates: TemplateBases;
  #uploads: Promise<void> = Promise.resolve();
  /** Who waits for a checkpoint to be in storage, by its id. */
  readonly #waiting = new Map<string, Set<() => void>>();

  constructor(options: CheckpointOptions) {
    this.#options = options;
    this.#templates = new TemplateBases({ ...options, signal: this.#stopping.signal });
  }

  /** Reads what is there, local and in storage; completes what a crash cut off; begins uploads again. */
  async start(): Promise<void> {
    const { dir, log } = this.#options;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    for (const id of await readdir(dir)) {
      const info = await readRecord(join(dir, id, "record.json"));
      if (info === undefined || !isCheckpointId(id))
        await rm(join(dir, id), { recursive: true, force: true });
      else this.#entries.set(id, { info, leases: 0, upload: undefined, onDrained: undefined });
    }
    await this.#adoptStored().catch((error: unknown) => {
      log.error(
        { err: error },
        "checkpoint storage could not be read at start; checkpoints known locally work",
      );
    });
    for (const [id, entry] of this.#entries) {
      if (entry.info.deleted) void this.#finishDelete(id, entry).catch(this.#reportDelete(id));
      else if (!entry.info.visible) this.#beginUpload(entry);
    }
  }

  /** Stops uploads between chunks; they begin again at the next start. */
  async stop(): Promise<void> {
    this.#stopping.abort(new Error("the host is stopping"));
    await Promise.all([...this.#entries.values()].map((entry) => entry.upload?.done));
  }

  /**
   * A place for a new checkpoint's image. Nothing is known of it until `commit`. `id`: of one that is not there yet; default: a new
   * one.
   */
  async reserve(id = newCheckpointId(this.#options.randomBytes)): Promise<Reservation> {
    const folder = this.#folder(id);
    await mkdir(folder, { mode: 0o700 });
    return {
      id,
      image: join(folder, "disk.img"),
      abandon: () => rm(folder, { recursive: true, force: true }),
    };
  }

  /** The image is taken: durable from here on, uploaded in the background. */
  async commit(
    reservation: Reservation,
    header: Omit<CheckpointHeader, "id" | "created_at">,
    seed: string,
  ): Promise<CheckpointInfo> {
    const info: CheckpointInfo = {
      ...header,
      id: reservation.id,
      created_at: rfc3339(this.#options.nowMs()),
      visible: false,
      local: true,
      parent: this.#newestOf(header.sandbox_id)?.id ?? seed,
      deleted: false,
      packs: [],
    };
    const record = join(this.#folder(info.id), "record.json");
    await createDurably(record, JSON.stringify(info), 0o600, () => syncFile(reservation.image));
    const entry: Entry = { info, leases: 0, upload: undefined, onDrained: undefined };
    this.#entries.set(info.id, entry);
    this.#beginUpload(entry);
    return info;
  }

  /** Newest first; of a team, and of one sandbox where `sandboxId` is given. */
  list(teamId: string, sandboxId = ""): CheckpointInfo[] {
    return [...this.#entries.values()]
      .map((entry) => entry.info)
      .filter(
        (info) =>
          !info.deleted && info.team_id === teamId && (sandboxId === "" || info.sandbox_id === sandboxId),
      )
      .sort((a, b) =>
        a.created_at === b.created_at ? (a.id < b.id ? 1 : -1) : a.created_at < b.created_at ? 1 : -1,
      );
  }

  /** At most `limit` of the list, behind `after`. `next`: where it ended; undefined: it is the last page. */
  page(
    teamId: string,
    sandboxId: string,
    { limit, after }: { limit: number; after?: ListPosition | undefined },
  ): { checkpoints: CheckpointInfo[]; next: ListPosition | undefined } {
    const all = this.list(teamId, sandboxId);
    const rest = after === undefined ? all : all.filter((info) => isBehind(info, after));
    const checkpoints = rest.slice(0, limit);
    return { checkpoints, next: rest.length > limit ? checkpoints.at(-1) : undefined };
  }

  /** The team's checkpoint; not_found for another team's as for what does not exist. */
  get(teamId: string, id: string): CheckpointInfo {
    const info = this.#entries.get(id)?.info;
    if (info === undefined || info.deleted || info.team_id !== teamId) {
      throw new ClocheError("not_found", `checkpoint_id ${JSON.stringify(id)} does not exist`);
    }
    return info;
  }

  /** The image of a checkpoint on the pool, fetched from storage when it was evicted. It cannot be deleted until released. */
  async lease(teamId: string, id: string): Promise<LeasedImage> {
    const info = this.get(teamId, id);
    const entry = this.#entries.get(id) as Entry;
    entry.leases += 1;
    const release = (): void => {
      entry.leases -= 1;
      if (entry.leases === 0) entry.onDrained?.();
    };
    try {
      await this.#queue.run(id, () => this.#fetch(entry));
    } catch (error) {
      release();
      throw error;
    }
    return { image: join(this.#folder(id), "disk.img"), info, release };
  }

  /** Gone from every list when it resolves; waits for readers and stops its upload. Answers the bytes freed. */
  async delete(teamId: string, id: string): Promise<number> {
    this.get(teamId, id);
    const entry = this.#entries.get(id) as Entry;
    entry.info.deleted = true;
    await this.#save(entry.info);
    return this.#finishDelete(id, entry);
  }

  /** What disks start from, in storage too. */
  get templates(): TemplateBases {
    return this.#templates;
  }

  /** How many wait for their upload or are in it. */
  get uploading(): number {
    return [...this.#entries.values()].filter(({ upload }) => upload !== undefined).length;
  }

  /** Resolves when nothing is being uploaded. */
  async settled(): Promise<void> {
    await Promise.all([...this.#entries.values()].map((entry) => entry.upload?.done));
  }

  async #adoptStored(): Promise<void> {
    const { archive, log } = this.#options;
    const stored = new Set(await archive.list());
    for (const id of stored) {
      if (!isCheckpointId(id) || this.#entries.has(id)) continue;
      const manifest = await archive.read(id).catch((error: unknown) => {
        log.error({ err: error, checkpoint_id: id }, "a checkpoint in storage cannot be read");
      });
      if (!manifest) continue;
      const { header, packs } = manifest;
      const info = { ...header, visible: true, local: false, parent: "", deleted: false, packs };
      this.#entries.set(id, { info, leases: 0, upload: undefined, onDrained: undefined });
    }
    for (const { info } of this.#entries.values()) {
      if (info.visible && !stored.has(info.id) && info.local && !info.deleted) info.visible = false; // storage lost it: again
    }
    await this.#sweep();
  }

  async #sweep(): Promise<void> {
    try {
      await this.#forgetOldTemplates();
      const removed = await this.#options.archive.sweep(() => this.#packsOfOthers(""));
      if (removed > 0)
        this.#options.log.info({ removed }, "packs that nobody names were removed from storage");
    } catch (error) {
      if (!(error instanceof UnknownPacks)) throw error;
      this.#options.log.error(
        { err: error },
        "no pack was removed from storage, since nobody knows which are needed",
      );
    }
  }

  /** Manifests of templates that this host has no more: an update made another. Checkpoints name what they share with one themselves. */
  async #forgetOldTemplates(): Promise<void> {
    const { archive, log, template } = this.#options;
    for (const id of await archive.listOld()) {
      if (!id.startsWith(TEMPLATE) || id.startsWith(`${TEMPLATE}${template.name}-`)) continue;
      await archive.forget(id);
      log.info({ template: id }, "the manifest of a template that is gone was removed from storage");
    }
  }

  #beginUpload(entry: Entry): void {
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, this.#stopping.signal]);
    // One after another: uploads compete with the sandboxes for this machine, and each may be the next one's base.
    const done = this.#uploads.then(() => this.#uploadUntilVisible(entry, signal));
    this.#uploads = done;
    entry.upload = { abort, done };
  }

  async #uploadUntilVisible(entry: Entry, signal: AbortSignal): Promise<void> {
    const { log, retryMs = 1_000 } = this.#options;
    for (let waitMs = retryMs; !signal.aborted; waitMs = Math.min(waitMs * 2, longestRetryMs)) {
      try {
        await this.#upload(entry, signal);
        break;
      } catch (error) {
        if (signal.aborted) break;
        log.warn(
          { err: error, checkpoint_id: entry.info.id, wait_ms: waitMs },
          "upload of a checkpoint failed; trying again",
        );
        await sleep(waitMs, signal);
      }
    }
    entry.upload = undefined;
  }

  async #upload(entry: Entry, signal: AbortSignal): Promise<void> {
    const { archive } = this.#options;
    const { info } = entry;
    const { visible: _, local: _local, parent: _parent, deleted: _deleted, packs: _packs, ...header } = info;
    const base = await this.#baseOf(info);
    try {
      const manifest = await archive.write(
        header,
        join(this.#folder(info.id), "disk.img"),
        base.base,
        signal,
      );
      info.packs = manifest.packs;
      info.visible = true;
      await this.#save(info);
    } finally {
      base.release();
    }
    const waiting = this.#waiting.get(info.id);
    this.#waiting.delete(info.id);
    for (const wake of waiting ?? []) wake();
    await this.#evict();
  }

  /** Calls back once when it becomes visible; the answer of this function takes the wish back. */
  onceVisible(id: string, wake: () => void): () => void {
    const waiting = this.#waiting.get(id) ?? new Set();
    this.#waiting.set(id, waiting.add(wake));
    return () => {
      waiting.delete(wake);
      if (waiting.size === 0 && this.#waiting.get(id) === waiting) this.#waiting.delete(id);
    };
  }

  /** The nearest image on the pool whose manifest is in storage: the parent's, else the template's. */
  async #baseOf(info: CheckpointInfo): Promise<{ base: BaseOfCheckpoint | undefined; release: () => void }> {
    const parent = this.#entries.get(info.parent);
    if (parent?.info.visible && parent.info.local && !parent.info.deleted) {
      const leased = await this.lease(parent.info.team_id, parent.info.id);
      const manifest = await this.#options.archive.read(parent.info.id).catch(() => undefined);
      if (manifest !== undefined) return { base: { image: leased.image, manifest }, release: leased.release };
      leased.release();
    }
    return { base: await this.#templates.of(info.disk_mb), release: () => undefined };
  }

  async #fetch(entry: Entry): Promise<void> {
    const { info } = entry;
    if (info.local) return;
    const manifest: Manifest | undefined = await this.#options.archive.read(info.id);
    if (manifest === undefined) {
      throw new ClocheError("failed_precondition", `checkpoint ${info.id} is no longer in storage`);
    }
    await mkdir(this.#folder(info.id), { recursive: true, mode: 0o700 });
    const image = join(this.#folder(info.id), "disk.img");
    await rm(image, { force: true });
    await this.#options.archive.materialise(manifest, image);
    info.local = true;
    await this.#save(info);
  }

  /** Images beyond the limit are dropped, oldest first; those in use or not yet visible stay. */
  async #evict(): Promise<void> {
    const local = [...this.#entries.values()].filter(({ info }) => info.local && !info.deleted);
    local.sort((a, b) => (a.info.created_at < b.info.created_at ? -1 : 1));
    for (const entry of local.slice(0, -this.#options.localImages)) {
      if (!entry.info.visible || entry.leases > 0) continue;
      await this.#queue.run(entry.info.id, async () => {
        if (entry.leases > 0) return;
        entry.info.local = false;
        await this.#save(entry.info);
        await rm(join(this.#folder(entry.info.id), "disk.img"), { force: true });
      });
    }
  }

  async #finishDelete(id: string, entry: Entry): Promise<number> {
    entry.upload?.abort.abort(new Error("the checkpoint is deleted"));
    await entry.upload?.done;
    if (entry.leases > 0) {
      await new Promise<void>((resolve) => {
        entry.onDrained = resolve;
      });
    }
    return this.#queue.run(id, async () => {
      if (!this.#entries.has(id)) return 0; // a second deletion at the same time
      const { archive, exclusiveBytes } = this.#options;
      const image = join(this.#folder(id), "disk.img");
      let freed = entry.info.local ? await exclusiveBytes(image).catch(() => 0) : 0;
      const manifest = await archive.read(id).catch(onlyDamage);
      if (manifest === "damaged") await archive.forget(id);
      else if (manifest !== undefined)
        freed += await archive.delete(manifest, await this.#packsKept(id, manifest));
      await rm(this.#folder(id), { recursive: true, force: true });
      this.#entries.delete(id);
      return freed;
    });
  }

  /**
   * What every checkpoint but this one needs, also those in storage that are not known here, and templates. Throws UnknownPacks where a
   * manifest cannot be read: then no pack may be removed.
   */
  async #packsOfOthers(id: string): Promise<PackReference[][]> {
    const others = [...this.#entries].filter(([other]) => other !== id).map(([, entry]) => entry.info.packs);
    for (const { packs } of await this.#templates.manifests()) others.push(packs);
    for (const other of await this.#options.archive.list()) {
      if (other === id || this.#entries.get(other)?.info.visible) continue;
      const manifest = await this.#options.archive.read(other).catch((error: unknown) => {
        throw new UnknownPacks(`checkpoint ${other} in storage cannot be read`, { cause: error });
      });
      if (manifest !== undefined) others.push(manifest.packs);
    }
    return others;
  }

  /** Where it cannot be known what others need, all of this one's packs stay; a later start sweeps them. */
  async #packsKept(id: string, manifest: Manifest): Promise<PackReference[][]> {
    try {
      return await this.#packsOfOthers(id);
    } catch (error) {
      if (!(error instanceof UnknownPacks)) throw error;
      this.#options.log.error(
        { err: error, checkpoint_id: id },
        "packs of a deleted checkpoint stay in storage",
      );
      return [manifest.packs];
    }
  }

  #newestOf(sandboxId: string): CheckpointInfo | undefined {
    let newest: CheckpointInfo | undefined;
    for (const { info } of this.#entries.values()) {
      if (info.sandbox_id !== sandboxId || info.deleted || !info.local) continue;
      if (newest === undefined || info.created_at >= newest.created_at) newest = info;
    }
    return newest;
  }

  #reportDelete(id: string): (error: unknown) => void {
    return (error) => {
      this.#options.log.error(
        { err: error, checkpoint_id: id },
        "deleting a checkpoint failed; the next start tries again",
      );
    };
  }

  #save(info: CheckpointInfo): Promise<void> {
    return mkdir(this.#folder(info.id), { recursive: true, mode: 0o700 }).then(() =>
      writeDurably(join(this.#folder(info.id), "record.json"), JSON.stringify(info)),
    );
  }

  #folder(id: string): string {
    return join(this.#options.dir, id);
  }
}

/** Storage that cannot be reached is no reason to forget what lies there: a later start would find it again. */
function onlyDamage(error: unknown): "damaged" {
  if (error instanceof ManifestError) return "damaged";
  throw error;
}

/** It cannot be told which packs in storage are needed. Never leaves this file. */
class UnknownPacks extends Error {}

/** One that a crash left in part was never answered: later changes replace it whole. */
async function readRecord(path: string): Promise<CheckpointInfo | undefined> {
  try {
    return (await readJsonFile(path)) as CheckpointInfo | undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
