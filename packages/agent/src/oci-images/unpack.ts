import {
  chownSync,
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  futimesSync,
  lchownSync,
  linkSync,
  lutimesSync,
  mkdirSync,
  openSync,
  symlinkSync,
  utimesSync,
  writeSync,
} from "node:fs";
import { ImageError } from "./image-error.ts";
import { type Content, type Ownership, show, type UnpackPlan } from "./image-tree.ts";
import { TarReader } from "./tar-reader.ts";

const createNew = constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY | constants.O_NOFOLLOW;

/**
 * Writes a planned tree into `folder`, which must not exist. `layer(n)` answers a new stream of the n-th layer's tar. Links are made after
 * all files, then directories get their times, so nothing is written through a link.
 */
export async function unpack(
  plan: UnpackPlan,
  folder: string,
  layer: (index: number) => AsyncIterable<Buffer>,
): Promise<void> {
  const root = Buffer.from(folder);
  const at = (path: string): Buffer =>
    path === "" ? root : Buffer.concat([root, Buffer.from("/"), Buffer.from(path, "latin1")]);
  mkdirSync(root, { mode: 0o700 });
  for (const { path } of plan.directories)
    if (path !== "") creating(path, () => mkdirSync(at(path), { mode: 0o700 }));
  for (const [index, contents] of plan.contents.entries()) {
    if (contents.size > 0) await writeContents(contents, new TarReader(layer(index)), at);
  }
  for (const { path, target, meta } of plan.symlinks) {
    creating(path, () => {
      symlinkSync(Buffer.from(target, "latin1"), at(path));
      lchownSync(at(path), meta.uid, meta.gid);
      lutimesSync(at(path), timeOf(meta), timeOf(meta));
    });
  }
  for (const { path, meta } of plan.directories.reverse()) {
    creating(path, () => {
      chownSync(at(path), meta.uid, meta.gid);
      chmodSync(at(path), meta.mode);
      utimesSync(at(path), timeOf(meta), timeOf(meta));
    });
  }
}

async function writeContents(
  contents: ReadonlyMap<number, Content>,
  reader: TarReader,
  at: (path: string) => Buffer,
): Promise<void> {
  let written = 0;
  for (let index = 0; written < contents.size; index += 1) {
    const entry = await reader.next();
    if (entry === undefined) throw new ImageError("a layer changed while it was unpacked");
    const content = contents.get(index);
    if (content === undefined) continue;
    written += 1;
    const [first = "", ...others] = content.names;
    const file = creating(first, () => openSync(at(first), createNew, 0o600));
    try {
      for await (const chunk of reader.data()) {
        for (let done = 0; done < chunk.length; ) done += writeSync(file, chunk, done);
      }
      creating(first, () => {
        fchownSync(file, content.uid, content.gid);
        fchmodSync(file, content.mode);
        futimesSync(file, timeOf(content), timeOf(content));
      });
    } finally {
      closeSync(file);
    }
    for (const other of others) creating(other, () => linkSync(at(first), at(other)));
  }
}

/** The nearest time that a file can have. Node takes a negative number for the present time, so these are given as a Date. */
function timeOf({ modifiedAtSeconds }: Ownership): number | Date {
  const seconds = Math.min(Math.max(modifiedAtSeconds, earliestSeconds), latestSeconds);
  return seconds < 0 ? new Date(seconds * 1_000) : seconds;
}
/** The range of times that both ext4 and gVisor can store: from 1901 to 2262. */
const earliestSeconds = -(2 ** 31);
const latestSeconds = 9_223_372_035;

/** An entry that the file system refuses is the image's fault; a full or failing disk is not. */
function creating<T>(path: string, act: () => T): T {
  try {
    return act();
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (ofMachine.has(code)) throw error;
    throw new ImageError(`the image's ${show(path)} cannot be made in a sandbox (${code})`, error);
  }
}

const ofMachine: ReadonlySet<string> = new Set(["ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE"]);
