/**
 * The changes that are made to gVisor's sources before they are compiled. Each is one place of one file: what stands there, what
 * stands there instead, and why. A version in which the place reads otherwise is not built.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

interface Change {
  readonly file: string;
  readonly before: string;
  readonly after: string;
}

/**
 * gVisor gives lo of a new network namespace its addresses at once; Linux does so when lo is brought up. Programs that give lo its
 * address before, as bubblewrap does, end when they are told that it exists.
 */
const loopbackAddress: Change = {
  file: "pkg/sentry/socket/netlink/route/protocol.go",
  before: "\t\t\t\tif flags&linux.NLM_F_EXCL != 0 {\n\t\t\t\t\treturn syserr.ErrExists\n",
  after:
    "\t\t\t\tif flags&linux.NLM_F_EXCL != 0 && ifa.Index != linux.LOOPBACK_IFINDEX {\n\t\t\t\t\treturn syserr.ErrExists\n",
};

export const changes: readonly Change[] = [loopbackAddress];

/** An input of the artifact: another list is another build. */
export const changesText = (): string => JSON.stringify(changes);

/** Changes `source`, a writable copy of the module. */
export async function applyChanges(source: string): Promise<void> {
  for (const change of changes) {
    const path = join(source, change.file);
    await writeFile(path, changed(change, await readFile(path, "utf8")));
  }
}

export function changed({ file, before, after }: Change, text: string): string {
  const parts = text.split(before);
  if (parts.length !== 2)
    throw new Error(`${file} of gVisor is not as expected: look whether the change is still needed`);
  return parts.join(after);
}
