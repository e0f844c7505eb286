/**
 * The template: a saved agent that has booted and rehearsed requests, and is not yet assigned to a sandbox. It holds two
 * snapshots. _Prepared_: memory with the users' guest on a fresh disk, and that disk; a new machine starts from both.
 * _Detached_: memory after the disk was detached, for a machine that has its own disk. Both skip the boot and have compiled code.
 * Owns <pool>/templates-gvisor/<key>/: the images, and the bootstrap secret that the agent in them accepts.
 *
 *   missing ──build (boot, save both, destroy)──▶ present ──no machine can be made from it──▶ missing
 *
 * A template that is present survives a crash: it was made durable, then renamed as a whole. The next build removes a half-made one.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, syncDirectory, syncFile } from "@cloche/base";
import { defaults } from "@cloche/protocol";
import { growDisk } from "../../../disk/disk.ts";
import { SizedImages } from "../../../disk/sized-images.ts";
import type { Native } from "../../../sys/native.ts";
import { type SnapshotFiles, snapshotDisk } from "../../driver.ts";
import { bootConfig } from "../boot-config.ts";
import type { Unit } from "../unit.ts";

export interface Template {
  /** The detached memory. */
  readonly dir: string;
  /** The prepared memory, and its disk of the default size. */
  readonly prepared: SnapshotFiles;
  /** The secret that the agent in it accepts for its first Assign; unique to this template. */
  readonly secret: string;
}

const secretFile = "template.json";
const preparedName = "prepared";

export class TemplateStore {
  readonly #dir: string;
  readonly #key: string;
  readonly #disks: SizedImages;

  constructor(options: { poolDir: string; key: string; native: Native }) {
    this.#dir = join(options.poolDir, "templates-gvisor");
    this.#key = options.key;
    this.#disks = new SizedImages(options.native);
  }

  async find(): Promise<Template | undefined> {
    const dir = join(this.#dir, this.#key);
    const known = (await readJsonFile(join(dir, secretFile))) as { secret: string } | undefined;
    return known ? templateIn(dir, known.secret) : undefined;
  }

  /** The template's disk in that size, to clone; undefined if `sizeMb` is smaller than that disk. */
  async disk(template: Template, sizeMb: number): Promise<string | undefined> {
    const image = snapshotDisk(template.prepared);
    if (sizeMb < defaults.diskMb) return undefined;
    if (sizeMb === defaults.diskMb) return image;
    return this.#disks.ofSize(image, join(template.prepared.dir, `disk-${sizeMb}.ext4`), sizeMb);
  }

  /**
   * Saves the prepared agent of `unit`, and saves it again after `detach`. Destroy the unit afterwards. Templates of other keys
   * are removed.
   */
  async build(unit: Unit, secret: string, detach: () => Promise<void>): Promise<Template> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const unfinished = join(this.#dir, `.making-${unit.record.name}`);
    const { dir, prepared } = templateIn(unfinished, secret);
    await mkdir(prepared.dir, { recursive: true, mode: 0o700 });
    try {
      const disk = snapshotDisk(prepared);
      await unit.snapshot(prepared.dir, disk, { stop: false, template: true });
      // This replays the disk's journal once, instead of in every clone.
      await growDisk(disk, defaults.diskMb);
      await detach();
      await unit.saveMemory(dir);
      await writeFile(join(unfinished, secretFile), JSON.stringify({ secret }), { mode: 0o600 });
      await makeDurable(prepared.dir);
      await makeDurable(unfinished);
      for (const name of await readdir(this.#dir)) {
        if (join(this.#dir, name) !== unfinished)
          await rm(join(this.#dir, name), { recursive: true, force: true });
      }
      await rename(unfinished, join(this.#dir, this.#key));
    } finally {
      await rm(unfinished, { recursive: true, force: true });
    }
    return templateIn(join(this.#dir, this.#key), secret);
  }

  async drop(): Promise<void> {
    await rm(join(this.#dir, this.#key), { recursive: true, force: true });
  }
}

/** What a host must have to restore a memory image. */
export interface MadeWith {
  /**
   * Path of the agent's root, whose files the image names, on the host that wrote it. The last part is a key of the content: a
   * root of the same key in another host's cache is equal. An upgrade makes a new root beside it.
   */
  agentRootDir: string;
  /** Digest of the sentry's version and all flags of the CPU. If equal, the image can be restored. */
  platform: string;
  /** Class of that CPU (suspended/cpu-class.ts). Equal class and `runscVersion` restore too. */
  cpuClass: string;
  /** Version of that sentry. */
  runscVersion: string;
  /** Port of its agent. */
  agentPort: number;
}

export async function platformKey(runscVersion: string): Promise<string> {
  const cpu = await readFile("/proc/cpuinfo", "utf8");
  const features = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpu)?.[1] ?? "";
  return digest([3, runscVersion, features]);
}

/** Key of a template: starts with the same key share it. `readyKey`: `ReadyHooks.key`. Raise the number to change how it is made. */
export const templateKey = (madeWith: MadeWith, readyKey: string): string =>
  digest([5, madeWith, readyKey, bootConfig("")]);

const templateIn = (dir: string, secret: string): Template => ({
  dir,
  prepared: { dir: join(dir, preparedName) },
  secret,
});

/** Syncs the files of a directory, and the directory. */
async function makeDurable(dir: string): Promise<void> {
  for (const name of await readdir(dir)) await syncFile(join(dir, name));
  await syncDirectory(dir);
}

const digest = (value: unknown): string =>
  createHash("sha256").update(JSON.stringify(value)).digest("hex").slice(0, 16);
