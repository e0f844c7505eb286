/**
 * Writes "newc" cpio archives, the format of Linux's first root file system. Needs no program of the host. Equal entries give equal
 * bytes, so that images can be named by their content.
 */

export interface CpioEntry {
  /** Relative, without a leading slash. Parents must come first. */
  readonly path: string;
  /** File type and permission bits, as in stat(2). */
  readonly mode: number;
  readonly data?: Uint8Array;
}

const sIfdir = 0o040000;
const sIfreg = 0o100000;
const trailer = "TRAILER!!!";

export const cpioDirectory = (path: string): CpioEntry => ({ path, mode: sIfdir | 0o755 });
export const cpioFile = (path: string, data: Uint8Array, executable = false): CpioEntry => ({
  path,
  mode: sIfreg | (executable ? 0o755 : 0o644),
  data,
});

/** All entries belong to root and have time 0. */
export function cpioArchive(entries: readonly CpioEntry[]): Buffer {
  const parts: Uint8Array[] = [];
  for (const [index, entry] of entries.entries()) append(parts, index + 1, entry);
  append(parts, 0, { path: trailer, mode: 0 });
  return Buffer.concat(parts);
}

function append(parts: Uint8Array[], inode: number, entry: CpioEntry): void {
  const name = Buffer.from(`${entry.path}\0`);
  const size = entry.data?.length ?? 0;
  const fields = [inode, entry.mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name.length, 0];
  const header = `070701${fields.map((field) => field.toString(16).padStart(8, "0")).join("")}`;
  parts.push(padded(Buffer.concat([Buffer.from(header), name])));
  if (entry.data) parts.push(padded(entry.data));
}

/** Headers with their names and data each end on a multiple of four bytes. */
function padded(bytes: Uint8Array): Uint8Array {
  const missing = (4 - (bytes.length % 4)) % 4;
  return missing === 0 ? bytes : Buffer.concat([bytes, Buffer.alloc(missing)]);
}
