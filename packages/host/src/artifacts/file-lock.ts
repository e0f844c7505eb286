// An exclusive lock between processes, released by the kernel when its holder dies: no stale locks.
// util-linux's flock holds it in a child whose life is tied to a pipe from us, since Node has no flock(2).
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";

/** Runs `body` while holding the lock on `path` (created when missing). Waits for other holders; `onWait` is told. */
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
