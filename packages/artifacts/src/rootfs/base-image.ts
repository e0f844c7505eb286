/**
 * The base file system as an ext4 image: `/fs` and `/cloche` (see base-rootfs.ts), made without mounting anything.
 * It is built small and grown after cloning (disk/), so one build serves every disk size.
 */
import { stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { type Artifact, obtainArtifact } from "../store/store.ts";

const recipeVersion = 1;
const bytesPerMib = 1024 * 1024;
/** Also the smallest disk a sandbox can have. */
export const baseImageMb = 1_024;
const journalSizeMb = 32;
const imageFile = "base.ext4";

export interface BaseImage {
  /** Names the content: images of equal key are equal. */
  readonly key: string;
  readonly path: string;
  /** Apparent size. */
  readonly sizeMb: number;
}

export function obtainBaseImage(cache: string, rootfs: Artifact, progress: Progress): Promise<BaseImage> {
  return inStep(
    progress,
    "base disk image (ext4)",
    "free some disk space and run the command again",
    async (detail) => {
      const artifact = await obtainArtifact(
        cache,
        {
          kind: "image",
          inputs: {
            recipe: recipeVersion,
            rootfs: rootfs.key,
            sizeMb: baseImageMb,
            journalMb: journalSizeMb,
          },
          build: (dir) => makeExt4(join(dir, imageFile), rootfs.path),
        },
        (_step, text) => detail(text ?? ""),
      );
      const path = join(artifact.path, imageFile);
      const { size } = await stat(path);
      return { key: artifact.key, path, sizeMb: size / bytesPerMib };
    },
  );
}

async function makeExt4(image: string, content: string): Promise<void> {
  await writeFile(image, "");
  await truncate(image, baseImageMb * bytesPerMib);
  await run(
    [
      "mke2fs",
      "-q",
      "-t",
      "ext4",
      "-b",
      "4096",
      "-L",
      "sandbox",
      // No reserved blocks, because the user is root inside. A small journal, because every clone needs its own copy.
      "-m",
      "0",
      "-J",
      `size=${journalSizeMb}`,
      // No lazy initialisation: each clone would write its inode tables in the background.
      "-E",
      "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0",
      "-d",
      content,
      image,
    ],
    { deadlineMs: 10 * 60_000 },
  );
}
