/**
 * Copies artifacts that were built elsewhere, such as those in a container image, into the cache, where machines that outlive this
 * host find them at the same path. Replaces nothing in the cache.
 *
 *   missing ──copy to .tmp-take-…──▶ rename ──▶ present
 *
 * Renamed artifacts survive a crash. The next start removes a half-made copy.
 */
import { readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { isPresent, withKindLock } from "./store.ts";

const copyDeadlineMs = 10 * 60_000;
const temporaryPrefix = ".tmp-take-";

/** Answers the names of the copied artifacts. */
export function takeArtifacts(from: string, cache: string, progress: Progress): Promise<string[]> {
  return withKindLock(cache, "take", progress, async () => {
    for (const name of await readdir(cache))
      if (name.startsWith(temporaryPrefix)) await rm(join(cache, name), { recursive: true, force: true });
    const taken: string[] = [];
    // A folder before its note (`<folder>.made-from.json`), so that a note always has its folder.
    for (const name of (await readdir(from)).toSorted()) {
      const target = join(cache, name);
      if (await isPresent(target)) continue;
      progress("artifacts of the image", name);
      const temporary = join(cache, `${temporaryPrefix}${name}`);
      const argv = ["cp", "-a", "--sparse=always", "--reflink=auto", join(from, name), temporary] as const;
      await run([...argv], { deadlineMs: copyDeadlineMs });
      await run(["sync", "-f", temporary], { deadlineMs: copyDeadlineMs });
      await rename(temporary, target);
      taken.push(name);
    }
    return taken;
  });
}
