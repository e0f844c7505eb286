/**
 * The checkpoints that this host knows. On a single machine: all. In a cluster: those on its own pool, and through the names in the
 * database (checkpoint-names.ts) those of every host. Owns `<pool>/checkpoints/<id>/`: `record.json`, and for recent checkpoints
 * `disk.img`, a reflink clone from which a restore is instant.
 *
 *   reserve ──(caller clones the disk)──▶ commit ──▶ taken ──upload──▶ visible ──evict──▶ visible, image in storage only
 *      └─ abandon                                      └───────────── delete ─────────────▶ (gone)
 *
 * Called by the host service and its checkpoint routes. Committed records survive a crash. The next start begins their uploads
 * again, completes deletions (tombstones) and removes reservations without a record.
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
import type { CheckpointArchive } from "./archive.ts";
import type { CheckpointInfo } from "./checkpoint-info.ts";
import type { CheckpointNames, NamedCheckpoint } from "./checkpoint-names.ts";
import { type CheckpointHeader, ManifestError, type PackReference } from "./manifest.ts";
import { CheckpointWriter } from "./checkpoint-writer.ts";
import { ManifestNames } from "./manifest-names.ts";
import { type DiskTemplate, TemplateBases } from "./template-bases.ts";

export type { CheckpointInfo } from "./checkpoint-info.ts";

export interface CheckpointOptions {
  /** `<pool>/checkpoints`. */
  dir: string;
  archive: CheckpointArchive;
  /** The template that new disks are cloned from. */
  template: DiskTemplate;
  /** Only on a host in a cluster: an object in storage counts only if it is named here. */
  names?: CheckpointNames;
  /** How many images to keep on the pool after they are visible. */
  localImages: number;
  /** Bytes on the pool that only this image holds: a deletion frees them. */
  exclusiveBytes(image: string): Promise<number>;
  nowMs(): number;
  randomBytes: RandomBytes;
  log: Log;
  /** First wait before a failed upload is tried again; it doubles up to a minute. Default 1 s. */
  retryMs?: number;
}

export interface Reservation {
  id: string;
  /** Path to which the caller clones the disk. */
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
const namedPollMs = 1_000;

export class CheckpointCatalogue {
  readonly #options: CheckpointOptions;
  readonly #entries = new Map<string, Entry>();
  readonly #queue = new SerialQueue();
  readonly #stopping = new AbortController();
  readonly #templates: TemplateBases;
  readonly #manifests: ManifestNames;
  readonly #writer: CheckpointWriter;
  #uploads: Promise<void> = Promise.resolve();
  /** Callbacks waiting for a checkpoint to be in storage, by its id. */
  readonly #waiting = new Map<string, Set<() => void>>();

  constructor(options: CheckpointOptions) {
    this.#options = options;
    this.#templates = new TemplateBases({ ...options, signal: this.#stopping.signal });
    this.#writer = new CheckpointWriter({ ...options, templates: this.#templates });
    this.#manifests = new ManifestNames({
      ...options,
      templates: this.#templates,
      templateName: options.template.name,
      known: () => new Map([...this.#entries].map(([id, { info }]) => [id, info])),
    });
  }

  /** Reads the records on the pool and in storage, completes deletions that a crash cut off, and begins uploads again. */
  async start(): Promise<void> {
    const { dir, log } = this.#options;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    for (const id of await readdir(dir)) {
      const info = await readRecord(join(dir, id, "record.json"));
      if (info === undefined || !isCheckpointId(id))
        await rm(join(dir, id), { recursive: true, force: true });
      else this.#entries.set(id, { info, leases: 0, upload: undefined, onDrained: undefined });
    }
    if (this.#options.names === undefined)
      await this.#adoptStored().catch((error: unknown) => {
        log.error(
          { err: error },
          "checkpoint storage could not be read at start; checkpoints known locally work",
        );
      });
    else void this.#forgetDropped();
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
   * Makes a place for a new checkpoint's image. The checkpoint exists from `commit` on. `id`: must not exist yet; default: a new id.
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

  /** Call once the image is cloned. Makes the checkpoint durable, and uploads it in the background. */
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
    this.#beginUpload(this.#adopt(info));
    return info;
  }

  /** A team's checkpoints, newest first; with `sandboxId` only those of that sandbox. */
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

  /** One page: at most `limit` of the list, after `after`. `next`: its end; undefined: the last page. In a cluster: of all hosts. */
  async page(
    teamId: string,
    sandboxId: string,
    { limit, after }: { limit: number; after?: ListPosition | undefined },
  ): Promise<{ checkpoints: CheckpointInfo[]; next: ListPosition | undefined }> {
    const known = this.list(teamId, sandboxId);
    const named = await this.#options.names?.list(teamId, sandboxId, { limit, after });
    // Not yet known to other hosts.
    const here = named === undefined ? known : known.filter(({ visible }) => !visible);
    const rest = after === undefined ? here : here.filter((info) => isBehind(info, after));
    // A checkpoint may become named between the two lists.
    const others = (named?.checkpoints ?? []).filter(
      ({ header }) => !rest.some(({ id }) => id === header.id),
    );
    const all = [...rest, ...others.map((one) => this.#infoOf(one))];
    const checkpoints = all.toSorted((a, b) => (isBehind(a, b) ? 1 : -1)).slice(0, limit);
    const hasMore = all.length > limit || named?.next !== undefined;
    return { checkpoints, next: hasMore ? checkpoints.at(-1) : undefined };
  }

  /** How many checkpoints the team has, and the total size of their disks. In a cluster: of all hosts. */
  async totals(teamId: string): Promise<{ count: number; bytes: number }> {
    const { names } = this.#options;
    const named = await names?.totals(teamId);
    const here = this.list(teamId).filter(({ visible }) => named === undefined || !visible);
    return {
      count: here.length + (named?.count ?? 0),
      bytes: here.reduce((sum, { size_bytes }) => sum + size_bytes, named?.bytes ?? 0),
    };
  }

  /** The team's checkpoint; in a cluster of any host. Throws not_found also for another team's. */
  async find(teamId: string, id: string): Promise<CheckpointInfo> {
    const { names } = this.#options;
    const here = this.#entries.get(id)?.info;
    if (names === undefined || (here !== undefined && (!here.visible || here.deleted)))
      return this.get(teamId, id);
    const named = await names.find(teamId, id);
    if (named !== undefined) return this.#infoOf(named);
    if (here?.team_id === teamId) await this.#forgetElsewhereDropped(id);
    throw noCheckpoint(id);
  }

  async #forgetElsewhereDropped(id: string): Promise<void> {
    await this.#queue.run(id, async () => {
      const entry = this.#entries.get(id);
      if (entry !== undefined && entry.leases === 0 && entry.info.visible) await this.#forget(id);
    });
  }

  #infoOf({ header, packs }: NamedCheckpoint): CheckpointInfo {
    const here = this.#entries.get(header.id)?.info;
    return here ?? { ...header, visible: true, local: false, parent: "", deleted: false, packs };
  }

  /** The team's checkpoint on this host. Throws not_found also for another team's. */
  get(teamId: string, id: string): CheckpointInfo {
    const info = this.#entries.get(id)?.info;
    if (info === undefined || info.deleted || info.team_id !== teamId) throw noCheckpoint(id);
    return info;
  }

  /** Leases the image of a checkpoint on the pool; fetches it from storage if evicted. It is not deleted before the release. */
  async lease(teamId: string, id: string): Promise<LeasedImage> {
    const info = this.#options.names === undefined ? this.get(teamId, id) : await this.find(teamId, id);
    const entry = this.#entries.get(id) ?? this.#adopt(info);
    if (entry.info.deleted) throw noCheckpoint(id);
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
    return { image: join(this.#folder(id), "disk.img"), info: entry.info, release };
  }

  /** Deletes a checkpoint: stops its upload and waits for leases to end. Answers the bytes freed. */
  async delete(teamId: string, id: string): Promise<number> {
    const info = this.#options.names === undefined ? this.get(teamId, id) : await this.find(teamId, id);
    const entry = this.#entries.get(id);
    // Not on this host's pool.
    if (entry === undefined) return await this.#dropStored(info);
    entry.info.deleted = true;
    await this.#save(entry.info);
    return this.#finishDelete(id, entry);
  }

  /** The templates of disks, on the pool and in storage. */
  get templates(): TemplateBases {
    return this.#templates;
  }

  /** How many checkpoints are being uploaded or wait for it. */
  get uploading(): number {
    return [...this.#entries.values()].filter(({ upload }) => upload !== undefined).length;
  }

  /** Resolves when all uploads have ended. */
  async settled(): Promise<void> {
    await Promise.all([...this.#entries.values()].map((entry) => entry.upload?.done));
  }

  async #adoptStored(): Promise<void> {
    for (const info of await this.#manifests.adopt()) this.#adopt(info);
    await this.#manifests.sweep();
  }

  #adopt(info: CheckpointInfo): Entry {
    const entry: Entry = { info, leases: 0, upload: undefined, onDrained: undefined };
    this.#entries.set(info.id, entry);
    return entry;
  }

  /** Forgets checkpoints on the pool that were dropped while this host was away. */
  async #forgetDropped(): Promise<void> {
    for (const { info } of this.#entries.values()) {
      if (!info.visible || info.deleted || this.#stopping.signal.aborted) continue;
      await this.find(info.team_id, info.id).catch((error: unknown) => {
        if (ClocheError.from(error).code !== "not_found")
          this.#options.log.warn({ err: error, checkpoint_id: info.id }, "lookup of a checkpoint failed");
      });
    }
  }

  #beginUpload(entry: Entry): void {
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, this.#stopping.signal]);
    // One at a time: uploads compete with sandboxes for CPU and network, and each may be the base of the next.
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
    const { names } = this.#options;
    const { info } = entry;
    // It may have been named before a crash: a named checkpoint is never written again.
    const named = await names?.find(info.team_id, info.id);
    info.packs = named?.packs ?? (await this.#write(info, signal));
    info.visible = true;
    await this.#save(info);
    const waiting = this.#waiting.get(info.id);
    this.#waiting.delete(info.id);
    for (const wake of waiting ?? []) wake();
    await this.#evict();
  }

  async #write(info: CheckpointInfo, signal: AbortSignal): Promise<PackReference[]> {
    const parent = await this.#parentOf(info);
    try {
      return await this.#writer.write(info, join(this.#folder(info.id), "disk.img"), parent, signal);
    } finally {
      parent?.release();
    }
  }

  /** Calls `wake` once when the checkpoint becomes visible. Call the returned function to cancel. */
  onceVisible(teamId: string, id: string, wake: () => void): () => void {
    if (this.#options.names !== undefined && !this.#entries.has(id)) return this.#onceNamed(teamId, id, wake);
    const waiting = this.#waiting.get(id) ?? new Set();
    this.#waiting.set(id, waiting.add(wake));
    return () => {
      waiting.delete(wake);
      if (waiting.size === 0 && this.#waiting.get(id) === waiting) this.#waiting.delete(id);
    };
  }

  /** For a checkpoint that another host uploads: looks again and again, because there is no notice. */
  #onceNamed(teamId: string, id: string, wake: () => void): () => void {
    const check = (): void => void this.find(teamId, id).then(wake, () => undefined);
    const timer = setInterval(check, namedPollMs);
    return () => clearInterval(timer);
  }

  /** The parent, leased, if it is on the pool and in storage. Undefined: there is none, or another host dropped it. */
  async #parentOf({ parent }: CheckpointInfo): Promise<(LeasedImage & { id: string }) | undefined> {
    const known = this.#entries.get(parent)?.info;
    if (!known?.visible || !known.local || known.deleted) return undefined;
    const leasing = this.lease(known.team_id, parent);
    const leased = await (this.#options.names === undefined ? leasing : leasing.catch(() => undefined));
    return leased && { ...leased, id: parent };
  }

  async #fetch(entry: Entry): Promise<void> {
    const { info } = entry;
    if (info.local) return;
    const manifest = await this.#options.archive.read(info.id);
    if (manifest === undefined) {
      throw new ClocheError("failed_precondition", `checkpoint ${info.id} is no longer in storage`);
    }
    if (manifest.header.disk_bytes !== info.disk_bytes)
      throw new ManifestError("its disk has another size than the checkpoint");
    await mkdir(this.#folder(info.id), { recursive: true, mode: 0o700 });
    const image = join(this.#folder(info.id), "disk.img");
    await rm(image, { force: true });
    const local = await this.#templates.local(info.disk_mb);
    await this.#options.archive.materialise(manifest, image, { local });
    info.local = true;
    await this.#save(info);
  }

  /** Removes images beyond the limit, oldest first. Keeps images in use or not yet visible. */
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
      const { exclusiveBytes } = this.#options;
      const image = join(this.#folder(id), "disk.img");
      const local = entry.info.local ? await exclusiveBytes(image).catch(() => 0) : 0;
      const freed = await this.#dropStored(entry.info);
      await this.#forget(id);
      return local + freed;
    });
  }

  async #dropStored({ team_id: teamId, id }: CheckpointInfo): Promise<number> {
    const { names } = this.#options;
    if (names === undefined) return await this.#manifests.drop(id);
    const freed = await names.drop(teamId, id);
    await names.release(`checkpoints/${id}`);
    return freed;
  }

  async #forget(id: string): Promise<void> {
    await rm(this.#folder(id), { recursive: true, force: true });
    this.#entries.delete(id);
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

const noCheckpoint = (id: string): ClocheError =>
  new ClocheError("not_found", `checkpoint_id ${JSON.stringify(id)} does not exist`);

/** Undefined for a record torn by a crash: its commit was never answered, and later changes replace the file atomically. */
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
