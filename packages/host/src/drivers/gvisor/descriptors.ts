/**
 * File descriptors of a sentry, on the host. Each file that a program has open takes two. A sentry without a free one runs on, but can
 * open nothing: no file, no process, and no connection of its control socket, so nothing can be saved of the machine either.
 */
import { readdir, readFile } from "node:fs/promises";
import { ClocheError } from "@cloche/protocol";

/** Fewer free ones count as none. */
const freeMin = 16;

/** The limit, if the process is at it; undefined: it has free descriptors, or is gone. */
export async function usedUpDescriptors(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined) return undefined;
  try {
    const read = (name: string): Promise<string> => readFile(`/proc/${pid}/${name}`, "utf8");
    const limit = Number(/^Max open files +(\d+)/m.exec(await read("limits"))?.[1]);
    // The size of the kernel's table grows with the most that were open at once: a look at each one is for few processes.
    const most = Number(/^FDSize:\s*(\d+)/m.exec(await read("status"))?.[1]);
    if (!(most >= limit / 2)) return undefined;
    return (await readdir(`/proc/${pid}/fd`)).length >= limit - freeMin ? limit : undefined;
  } catch {
    return undefined;
  }
}

/** Throws instead of waiting for a sentry that cannot be asked. */
export async function requireDescriptors(pid: number | undefined): Promise<void> {
  const limit = await usedUpDescriptors(pid);
  if (limit === undefined) return;
  throw new ClocheError(
    "failed_precondition",
    `programs of the sandbox have as many files open as the host allows (${limit} descriptors): close some or end a program; ` +
      "if it stays so for a minute, the sandbox starts again from its disk",
  );
}
