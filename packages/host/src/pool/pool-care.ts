// Looks after an open pool: space freed in its image is given back to the disk below, so that other programs of the
// machine have it. Owns one timer; reads and trims, nothing else.
import { stat, statfs } from "node:fs/promises";
import type { Native } from "../sys/native.ts";
import { type Pool, trimPool } from "./pool.ts";

const EVERY_MS = 10 * 60_000;
/** Below this a trim is not worth its while. */
const SLACK_BYTES = 2 * 1024 ** 3;

/** Begins to look after `pool`; answers the function that ends it and waits for a trim under way. */
export function careForPool(
  pool: Pool,
  native: Native,
  onError: (error: unknown) => void,
): () => Promise<void> {
  let trimming: Promise<void> | undefined;
  const look = async () => {
    if ((await poolSlack(pool)) > SLACK_BYTES) await trimPool(pool, native);
  };
  const timer = setInterval(() => {
    trimming ??= look()
      .catch(onError)
      .finally(() => {
        trimming = undefined;
      });
  }, EVERY_MS);
  timer.unref();
  return async () => {
    clearInterval(timer);
    await trimming;
  };
}

/** Bytes that the image holds on the disk below and that no file in the pool uses. */
export async function poolSlack(pool: Pool): Promise<number> {
  if (pool.kind === "native") return 0;
  const { blocks } = await stat(`${pool.dir}.xfs`);
  const inside = await statfs(pool.dir);
  return blocks * 512 - (inside.blocks - inside.bfree) * inside.bsize;
}
