// runsc in huge pages. A sandbox's creation starts it seven times, and each time its 28 MB are mapped by pages of 4 KiB that
// have to be faulted in; from a tmpfs of huge pages they are mapped by 2 MiB. Its memory is that of one copy, however many
// sandboxes there are.
//
// Owns the mount at `dir` and the copy in it. Survives the service, as the machines do; unmounted when none is left.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import type { Log } from "@cloche/base";
import { mountAt } from "../../sys/mounts.ts";
import { run } from "../../sys/run.ts";

/** A limit, of which nothing is used but what lies in it: a copy, and for a while those of earlier versions. */
const OPTIONS = "huge=always,size=256m,mode=700,nosuid,nodev";

/** The path of a copy; of the program itself where the kernel makes no such mount. Repeatable. */
export async function inHugePages(program: string, dir: string, log: Log): Promise<string> {
  try {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    if ((await mountAt(dir)) === undefined) await run(["mount", "-t", "tmpfs", "-o", OPTIONS, "tmpfs", dir]);
    return await copied(program, dir);
  } catch (error) {
    log.info({ err: error }, "no huge pages for runsc: it starts a little slower");
    await unmountHugePages(dir).catch(() => undefined);
    return program;
  }
}

async function copied(program: string, dir: string): Promise<string> {
  const { size, mtimeMs } = await stat(program);
  const version = createHash("sha256")
    .update(JSON.stringify([program, size, mtimeMs]))
    .digest("hex");
  const name = `${basename(program)}-${version.slice(0, 16)}`;
  const there = await readdir(dir);
  if (!there.includes(name)) {
    await copyFile(program, join(dir, ".new"));
    await rename(join(dir, ".new"), join(dir, name));
  }
  // What still runs out of one of them keeps it.
  for (const other of there) if (other !== name) await rm(join(dir, other), { force: true });
  return join(dir, name);
}

/** Repeatable. What still runs out of it keeps the memory, not the mount. */
export async function unmountHugePages(dir: string): Promise<void> {
  while ((await mountAt(dir)) !== undefined) await run(["umount", "-l", dir]);
}
