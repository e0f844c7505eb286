/**
 * The base image on the pool, in all requested sizes: `<pool>/templates/<key>-<mb>.ext4`. New disks are clones of these.
 */
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { BaseImage } from "@cloche/artifacts";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import type { Pool } from "../pool/pool.ts";
import type { Native } from "../sys/native.ts";
import { exists, SizedImages } from "./sized-images.ts";

const copyDeadlineMs = 10 * 60_000;

export interface Templates {
  /** Key of the base image. */
  readonly key: string;
  /** Image of a fresh disk of `sizeMb`: clone it, never attach it. */
  ofSize(sizeMb: number): Promise<string>;
}

/** Copies the base image to the pool (once) and makes the sizes in `sizesMb`. */
export function openTemplates(options: {
  readonly pool: Pool;
  readonly native: Native;
  readonly base: BaseImage;
  /** Sizes made at once, so that no sandbox waits for them. */
  readonly sizesMb: readonly number[];
  readonly progress: Progress;
}): Promise<Templates> {
  const { pool, native, base } = options;
  const dir = join(pool.dir, "templates");
  const imageOf = (sizeMb: number) => join(dir, `${base.key}-${sizeMb}.ext4`);
  const sizes = new SizedImages(native);
  const ofSize = (sizeMb: number): Promise<string> =>
    sizes.ofSize(imageOf(base.sizeMb), imageOf(sizeMb), sizeMb);

  const repair = "free some space in the pool (or enlarge it: CLOCHE_POOL_GB) and run the command again";
  return inStep(options.progress, "base image in the pool", repair, async (detail) => {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const first = imageOf(base.sizeMb);
    if (!(await exists(first))) {
      detail("copying it");
      await run(["cp", "--reflink=auto", "--sparse=always", base.path, `${first}.making`], {
        deadlineMs: copyDeadlineMs,
      });
      await run(["sync", `${first}.making`], { deadlineMs: copyDeadlineMs });
      await rename(`${first}.making`, first);
    }
    for (const sizeMb of options.sizesMb) await ofSize(sizeMb);
    // Remove images of an earlier base. Disks cloned from them keep their blocks.
    for (const name of await readdir(dir))
      if (!name.startsWith(`${base.key}-`)) await rm(join(dir, name), { recursive: true, force: true });
    return { key: base.key, ofSize };
  });
}
