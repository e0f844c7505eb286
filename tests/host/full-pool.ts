// A pool without room: its blocks are reserved, not written.
import { execFileSync } from "node:child_process";
import { rmSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";

/** Takes every block of the pool in `dir` but `spareMib`; answers the function that gives them back. */
export function fillPool(dir: string, spareMib: number): () => void {
  const fillers: string[] = [];
  const spare = join(dir, "spare");
  execFileSync("fallocate", ["-l", `${spareMib}MiB`, spare]);
  for (let bytes = 4 * 1024 ** 3; bytes >= 4_096; bytes /= 2)
    for (let more = true; more; ) {
      const file = join(dir, `filler-${fillers.length}`);
      fillers.push(file);
      try {
        execFileSync("fallocate", ["-l", String(bytes), file], { stdio: "ignore" });
      } catch {
        more = false;
      }
    }
  expect(statfsSync(dir).bavail).toBeLessThan(1_000);
  rmSync(spare);
  return () => {
    for (const file of fillers) rmSync(file, { force: true });
  };
}
