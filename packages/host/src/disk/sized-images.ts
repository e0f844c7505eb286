/**
 * Makes an image in larger sizes, to be cloned. Each size is made once, by a reflink and a growth (about 30 ms).
 * Owns no files: the caller gives their paths. After a crash an existing size is complete, because it was renamed when finished.
 */
import { rename, stat } from "node:fs/promises";
import type { Native } from "../sys/native.ts";
import { cloneDisk, growDisk } from "./disk.ts";

export class SizedImages {
  readonly #native: Native;
  readonly #building = new Map<string, Promise<string>>();

  constructor(native: Native) {
    this.#native = native;
  }

  /** Makes `image`, a clone of `from` grown to `sizeMb`, unless it exists. Answers its path. */
  ofSize(from: string, image: string, sizeMb: number): Promise<string> {
    const known = this.#building.get(image);
    if (known) return known;
    const made = this.#make(from, image, sizeMb).finally(() => this.#building.delete(image));
    this.#building.set(image, made);
    return made;
  }

  async #make(from: string, image: string, sizeMb: number): Promise<string> {
    if (await exists(image)) return image;
    const unfinished = `${image}.making`;
    await cloneDisk(this.#native, from, unfinished);
    await growDisk(unfinished, sizeMb);
    await rename(unfinished, image);
    return image;
  }
}

export const exists = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  );
