/**
 * Trims an open pool from time to time: space freed in its image goes back to the disk below, for other programs of the
 * computer. Owns one timer.
 */
import { stat, statfs } from "node:fs/promises";
import type { Native } from "../sys/native.ts";
import { type Pool, trimPool } from "./pool.ts";

const everyMs = 10 * 60_000;
/** With less unused space, a trim is not worth its time. */
const slackBytes = 2 * 1024 ** 3;

/** Starts the trims. The returned function ends them and waits for a trim under way. */
export function careForPool(
  pool: Pool,
  native: Native,
  onError: (error: unknown) => void,
): () => Promise<void> {
  let trimming: Promise<void> | undefined;
  const check = async () => {
    if ((await poolSlack(pool)) > slackBytes) await trimPool(pool, native);
  };
  const timer = setInterval(() => {
    trimming ??= check()
      .catch(onError)
      .finally(() => {
        trimming = undefined;
      });
  }, everyMs);
  timer.unref();
  return async () => {
    clearInterval(timer);
    await trimming;
  };
}

/** Bytes that the pool's image occupies on the disk below and that no file in the pool uses. */
export async function poolSlack(pool: Pool): Promise<number> {
  if (pool.kind === "native") return 0;
  const { blocks } = await stat(`${pool.dir}.xfs`);
  const inside = await statfs(pool.dir);
  return blocks * 512 - (inside.blocks - inside.bfree) * inside.bsize;
}
