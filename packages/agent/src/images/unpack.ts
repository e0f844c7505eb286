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
import type { Content, UnpackPlan } from "./image-tree.ts";
import { TarReader } from "./tar-reader.ts";

const createNew = constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY | constants.O_NOFOLLOW;

/**
 * Writes a planned tree into `folder`, which must not exist. `layer(n)` answers the tar of the n-th layer anew. Links are
 * made last but one and directories get their times last, so nothing is ever written through a link.
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
  for (const { path } of plan.directories) if (path !== "") mkdirSync(at(path), { mode: 0o700 });
  for (const [index, contents] of plan.contents.entries()) {
    if (contents.size > 0) await writeContents(contents, new TarReader(layer(index)), at);
  }
  for (const { path, target, meta } of plan.symlinks) {
    symlinkSync(Buffer.from(target, "latin1"), at(path));
    lchownSync(at(path), meta.uid, meta.gid);
    lutimesSync(at(path), meta.modifiedAtSeconds, meta.modifiedAtSeconds);
  }
  for (const { path, meta } of plan.directories.reverse()) {
    chownSync(at(path), meta.uid, meta.gid);
    chmodSync(at(path), meta.mode);
    utimesSync(at(path), meta.modifiedAtSeconds, meta.modifiedAtSeconds);
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
    const file = openSync(at(first), createNew, 0o600);
    try {
      for await (const chunk of reader.data()) {
        for (let done = 0; done < chunk.length; ) done += writeSync(file, chunk, done);
      }
      fchownSync(file, content.uid, content.gid);
      fchmodSync(file, content.mode);
      futimesSync(file, content.modifiedAtSeconds, content.modifiedAtSeconds);
    } finally {
      closeSync(file);
    }
    for (const other of others) linkSync(at(first), at(other));
  }
}
