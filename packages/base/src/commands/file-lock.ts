/**
 * An exclusive lock between processes. The kernel releases it when the holder dies, so there are no stale locks.
 * util-linux's flock holds it in a child that ends with a pipe from us, because Node has no flock(2).
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";

/** Runs `body` while holding the lock on `path` (created when missing). Waits for other holders, after a call of `onWait`. */
export async function withFileLock<T>(path: string, body: () => Promise<T>, onWait?: () => void): Promise<T> {
  await mkdir(dirname(path), { recursive: true });
  const holder = spawn("flock", ["-x", "-F", path, "sh", "-c", "echo held; exec cat > /dev/null"], {
    stdio: ["pipe", "pipe", "ignore"],
  });
  const waiting = setTimeout(() => onWait?.(), 1_000);
  const closed = once(holder, "close");
  try {
    await Promise.race([
      once(holder.stdout, "data"),
      closed.then(() => Promise.reject(new Error(`cannot lock ${path}: flock exited`))),
    ]);
    clearTimeout(waiting);
    return await body();
  } finally {
    clearTimeout(waiting);
    holder.stdin.end();
    await closed;
  }
}
