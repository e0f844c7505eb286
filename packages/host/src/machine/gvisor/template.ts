// The template: the memory of an agent that has booted, rehearsed a request and let go of its disk; it knows nobody. Machines
// made from it skip the boot and find their code compiled.
// Owns <pool>/templates-gvisor/<key>/: the image, and the bootstrap secret that the agent in it accepts.
//
//   missing ──build (boot, save, destroy)──▶ present ──a machine cannot be made from it──▶ missing
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile } from "@cloche/base";
import { bootConfig } from "./boot-config.ts";
import type { Unit } from "./unit.ts";

export interface Template {
  readonly dir: string;
  /** What the agent in it accepts for its first Assign. */
  readonly secret: string;
}

const SECRET_FILE = "template.json";

export class TemplateStore {
  readonly #dir: string;
  readonly #key: string;

  constructor(options: { poolDir: string; key: string }) {
    this.#dir = join(options.poolDir, "templates-gvisor");
    this.#key = options.key;
  }

  async find(): Promise<Template | undefined> {
    const dir = join(this.#dir, this.#key);
    const known = (await readJsonFile(join(dir, SECRET_FILE))) as { secret: string } | undefined;
    return known ? { dir, secret: known.secret } : undefined;
  }

  /** Saves the booted agent of `unit`, which is good for nothing else afterwards. Other keys' templates are removed. */
  async build(unit: Unit, secret: string): Promise<Template> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const making = join(this.#dir, `.making-${unit.record.name}`);
    await mkdir(making, { mode: 0o700 });
    try {
      await unit.saveMemory(making);
      await writeFile(join(making, SECRET_FILE), JSON.stringify({ secret }), { mode: 0o600 });
      for (const name of await readdir(this.#dir)) {
        if (join(this.#dir, name) !== making)
          await rm(join(this.#dir, name), { recursive: true, force: true });
      }
      await rename(making, join(this.#dir, this.#key));
    } finally {
      await rm(making, { recursive: true, force: true });
    }
    return { dir: join(this.#dir, this.#key), secret };
  }

  async drop(): Promise<void> {
    await rm(join(this.#dir, this.#key), { recursive: true, force: true });
  }
}

/** What a memory image needs to be restored, beside itself. */
export interface MadeWith {
  /** The agent's root, whose files the image names. Content-addressed: an upgrade makes a new one beside it. */
  agentRootDir: string;
  /** Of the sentry and the CPU: gVisor restores only its own version's images, on a CPU that lacks no feature. */
  platform: string;
}

export async function platformKey(runsc: string): Promise<string> {
  const cpu = await readFile("/proc/cpuinfo", "utf8");
  const features = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpu)?.[1] ?? "";
  return digest([2, runsc, features]);
}

/** Of a template: two starts with the same key can share it. The number is that of how it is made. */
export const templateKey = (madeWith: MadeWith): string => digest([3, madeWith, bootConfig("")]);

const digest = (value: unknown): string =>
  createHash("sha256").update(JSON.stringify(value)).digest("hex").slice(0, 16);
