/**
 * Puts the images of suspended machines into storage, in the background, a few at once.
 *
 *   suspended ──(its turn)──▶ uploading ──▶ stored: noted on the record, and watchers are told
 *                                │ fails: again, after a wait that doubles
 *                                └ resumes, is destroyed: stopped; the written objects are garbage
 *
 * Follows the machines' events, so that operations need not call it. `stored` of the record survives a crash; every suspended
 * machine without it is uploaded after a start.
 */
import { type Clock, type Log, Turns } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import { MachineEvent_Kind, MachinePhase } from "@cloche/protocol/host";
import { ImageMismatchError, snapshotDisk } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { snapshotOf } from "./memory-images.ts";
import type { Parts } from "./parts.ts";
import { travelling } from "../suspended/image-description.ts";
import type { StoredImages, SuspendedFiles } from "../suspended/stored-images.ts";

const uploadsAtOnce = 2;
const firstRetryMs = 1_000;
const lastRetryMs = 60_000;
/** Packs that are not named yet are swept when they are a day old; an upload must end before. */
const uploadMaxMs = 20 * 3_600_000;

export type ImageUploadsParts = Parts<"machines" | "queue" | "drivers"> & {
  images: StoredImages;
  clock: Clock;
  log: Log;
};

interface Upload {
  epoch: number;
  abort: AbortController;
  done: Promise<void>;
}

export class ImageUploads {
  readonly #parts: ImageUploadsParts;
  readonly #stopping = new AbortController();
  readonly #turns = new Turns(uploadsAtOnce);
  readonly #uploads = new Map<string, Upload>();
  #following: Promise<void> = Promise.resolve();

  constructor(parts: ImageUploadsParts) {
    this.#parts = parts;
  }

  start(): void {
    const { images, log } = this.#parts;
    // So that the first import does not wait for it.
    void images
      .warm(defaults.diskMb)
      .catch((err: unknown) => log.warn({ err }, "the template could not be read"));
    this.#following = this.#follow();
  }

  /** Stops uploads between chunks; they begin again at the next start. */
  async stop(): Promise<void> {
    this.#stopping.abort(new Error("the host is stopping"));
    await this.#following;
    await this.settled();
  }

  /** How many images are being uploaded or wait for their turn. */
  get uploading(): number {
    return this.#uploads.size;
  }

  /** Resolves when all uploads have ended. */
  async settled(): Promise<void> {
    await Promise.all([...this.#uploads.values()].map(({ done }) => done));
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stopping;
    const { machines } = this.#parts;
    // A watcher that falls behind is ended: watch again, which gives the full list.
    while (!signal.aborted && !machines.events.isClosed) {
      for await (const { kind, machine } of machines.events.watch(signal)) {
        if (machine === undefined || kind === MachineEvent_Kind.IDLE) continue;
        this.#check(machine.sandboxId, machine.phase === MachinePhase.SUSPENDED);
      }
    }
  }

  #check(id: string, wasSuspended: boolean): void {
    const record = this.#parts.machines.find(id);
    const isDue = wasSuspended && record?.phase === "suspended" && record.stored === undefined;
    const under = this.#uploads.get(id);
    if (under !== undefined && isDue && under.epoch === record.epoch) return;
    under?.abort.abort(new Error("the machine is no longer as it was suspended"));
    if (!isDue) return;
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, this.#stopping.signal]);
    const upload: Upload = { epoch: record.epoch, abort, done: Promise.resolve() };
    this.#uploads.set(id, upload);
    upload.done = Promise.resolve(under?.done)
      .then(() => this.#untilStored(record, signal))
      .finally(() => {
        if (this.#uploads.get(id) === upload) this.#uploads.delete(id);
      });
  }

  async #untilStored(record: MachineRecord, signal: AbortSignal): Promise<void> {
    const { clock, log } = this.#parts;
    for (let waitMs = firstRetryMs; !signal.aborted; waitMs = Math.min(waitMs * 2, lastRetryMs)) {
      const leave = await this.#turns.enter();
      try {
        if (!signal.aborted) await this.#store(record, signal);
        return;
      } catch (error) {
        if (signal.aborted) return;
        const fields = { err: error, sandbox_id: record.id, wait_ms: waitMs };
        log.warn(fields, "upload of a suspended image failed; trying again");
      } finally {
        leave();
      }
      await clock.sleep(waitMs, signal).catch(() => undefined);
    }
  }

  async #store(record: MachineRecord, signal: AbortSignal): Promise<void> {
    const { machines, queue, images, log, clock } = this.#parts;
    const { id, epoch } = record;
    const beganMs = clock.monotonicMs();
    const late = AbortSignal.timeout(uploadMaxMs);
    const stored = await images.store(await this.#filesOf(record), AbortSignal.any([signal, late]));
    // In the machine's turn, so that a resume comes before or after.
    const isNoted = await queue.run(id, async () => {
      const now = machines.find(id);
      if (now?.phase !== "suspended" || now.epoch !== epoch) return false;
      await machines.change(id, { stored }, { durable: true });
      return true;
    });
    const fields = { sandbox_id: id, key: stored.key, bytes: stored.bytes };
    const ms = Math.round(clock.monotonicMs() - beganMs);
    if (isNoted) log.info({ ...fields, ms }, "a suspended image is in storage");
  }

  /** The files to store. The memory is included if a driver of another host can restore it. */
  async #filesOf(record: MachineRecord): Promise<SuspendedFiles> {
    const { machines, drivers } = this.#parts;
    const driver = drivers.of(record);
    if (record.snapshot === undefined)
      return { record: travelling(record), disk: machines.files(record).diskImage };
    const files = snapshotOf(this.#parts, record, record.snapshot);
    const whole = { record: travelling(record), disk: snapshotDisk(files) };
    try {
      const cpuClass = await (driver.memoryClass ?? (() => drivers.memoryClass()))(files);
      const base = await driver.memoryBase?.(files);
      if (cpuClass !== undefined) return { ...whole, memory: { dir: files.dir, cpuClass, base } };
    } catch (error) {
      if (!(error instanceof ImageMismatchError)) throw error;
      return { ...whole, withoutMemory: error.message };
    }
    return { ...whole, withoutMemory: "its memory can be restored on the host that saved it only" };
  }
}
