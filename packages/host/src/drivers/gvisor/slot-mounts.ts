/**
 * The directory below which units' slots lie: a shared mount point, so that disks mounted there reach the sandboxes.
 */
import { mkdir } from "node:fs/promises";
import { run } from "@cloche/base/run";
import { listMounts, mountAt } from "../../sys/mounts.ts";

/** Repeatable. */
export async function shareMounts(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  if ((await mountAt(dir)) === undefined) await run(["mount", "--bind", dir, dir]);
  // A bind mount has the options of what it was made of, and some computers mount /run so that no program may run there.
  await run(["mount", "-o", "remount,bind,exec,suid,dev", dir]);
  await run(["mount", "--make-shared", dir]);
}

/** Repeatable. */
export async function unshareMounts(dir: string): Promise<void> {
  while ((await mountAt(dir)) !== undefined) await run(["umount", dir]);
}

/** Unmounts everything below `dir`, such as the namespaces that runsc pins. Repeatable. */
export async function unmountBelow(dir: string): Promise<void> {
  for (const { mountPoint } of await listMounts()) {
    if (mountPoint.startsWith(`${dir}/`)) await run(["umount", mountPoint]);
  }
}
