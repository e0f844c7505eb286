// The template: the memory of an agent that has booted and rehearsed requests, and knows nobody, at two moments. _Prepared_:
// with the users' guest on a fresh disk, saved with that disk; a fresh machine starts from both. _Detached_: after it let go
// of the disk, for machines whose disk is there already. Either skips the boot and finds its code compiled.
// Owns <pool>/templates-gvisor/<key>/: the images, and the bootstrap secret that the agent in them accepts.
//
//   missing ──build (boot, save both, destroy)──▶ present ──a machine cannot be made from it──▶ missing
//
// Survives a crash: what is present, for it was renamed as a whole when it was durable. What was half made goes at the next build.
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
  /** What the agent in it accepts for its first Assign. No two templates have the same. */
  readonly secret: string;
}

const SECRET_FILE = "template.json";
const PREPARED = "prepared";

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
    const known = (await readJsonFile(join(dir, SECRET_FILE))) as { secret: string } | undefined;
    return known ? templateIn(dir, known.secret) : undefined;
  }

  /** Its disk in that size, to be cloned; undefined where it is larger. */
  async disk(template: Template, sizeMb: number): Promise<string | undefined> {
    const image = snapshotDisk(template.prepared);
    if (sizeMb < defaults.diskMb) return undefined;
    if (sizeMb === defaults.diskMb) return image;
    return this.#disks.ofSize(image, join(template.prepared.dir, `disk-${sizeMb}.ext4`), sizeMb);
  }

  /**
   * Saves the prepared agent of `unit`, and once more after `detach`; it is good for nothing else afterwards. Other keys'
   * templates are removed.
   */
  async build(unit: Unit, secret: string, detach: () => Promise<void>): Promise<Template> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const making = join(this.#dir, `.making-${unit.record.name}`);
    const { dir, prepared } = templateIn(making, secret);
    await mkdir(prepared.dir, { recursive: true, mode: 0o700 });
    try {
      const disk = snapshotDisk(prepared);
      await unit.snapshot(prepared.dir, disk, { stop: false, template: true });
      // Its journal is replayed here once, and in no clone.
      await growDisk(disk, defaults.diskMb);
      await detach();
      await unit.saveMemory(dir);
      await writeFile(join(making, SECRET_FILE), JSON.stringify({ secret }), { mode: 0o600 });
      await makeDurable(prepared.dir);
      await makeDurable(making);
      for (const name of await readdir(this.#dir)) {
        if (join(this.#dir, name) !== making)
          await rm(join(this.#dir, name), { recursive: true, force: true });
      }
      await rename(making, join(this.#dir, this.#key));
    } finally {
      await rm(making, { recursive: true, force: true });
    }
    return templateIn(join(this.#dir, this.#key), secret);
  }

  async drop(): Promise<void> {
    await rm(join(this.#dir, this.#key), { recursive: true, force: true });
  }
}

/** What a memory image needs to be restored, beside itself. */
export interface MadeWith {
  /**
   * The agent's root, whose files the image names, on the host that wrote it. Its last part is its content's key: the root of
   * that key in another host's cache is the same. An upgrade makes a new one beside it.
   */
  agentRootDir: string;
  /** Of the sentry that wrote it and the very CPU, all its flags: equal ones restore. */
  platform: string;
  /** Of that CPU (images/cpu-class.ts): with the same `runscVersion` restores too. Absent: an earlier release wrote it. */
  cpuClass?: string;
  /** Of that sentry, for words. Absent: an earlier release wrote it, or started the sentry. */
  runscVersion?: string;
  /** Where the agent in it listens, of an image of a machine. Absent: made by the first release. */
  agentPort?: number;
}

export async function platformKey(runscVersion: string): Promise<string> {
  const cpu = await readFile("/proc/cpuinfo", "utf8");
  const features = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpu)?.[1] ?? "";
  return digest([3, runscVersion, features]);
}

/** Of a template: two starts with the same key can share it. `readyKey`: of what prepares it. The number is that of how it is made. */
export const templateKey = (madeWith: MadeWith, readyKey: string): string =>
  digest([5, madeWith, readyKey, bootConfig("")]);

const templateIn = (dir: string, secret: string): Template => ({
  dir,
  prepared: { dir: join(dir, PREPARED) },
  secret,
});

/** The files of a directory, and their names. */
async function makeDurable(dir: string): Promise<void> {
  for (const name of await readdir(dir)) await syncFile(join(dir, name));
  await syncDirectory(dir);
}

const digest = (value: unknown): string =>
  createHash("sha256").update(JSON.stringify(value)).digest("hex").slice(0, 16);
