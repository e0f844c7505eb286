/**
 * The tree that results from an image's layers, computed in memory before anything is written. Whiteouts, opaque directories,
 * replacements and links are resolved as paths below a root that they cannot leave. Unpacking then writes only the remaining entries, into
 * an empty folder, and never follows a link. So a hostile archive cannot write anywhere else.
 */
import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";
import type { TarEntry } from "./tar-reader.ts";

export interface Ownership {
  mode: number;
  uid: number;
  gid: number;
  modifiedAtSeconds: number;
}
/** Content of a file: its place in the layers, and all paths of the result that name it. */
export interface Content extends Ownership {
  sizeBytes: number;
  names: string[];
}
type Node =
  | { kind: "directory"; layer: number; meta: Ownership; pathBytes: number; children: Map<string, Node> }
  | { kind: "symlink"; layer: number; meta: Ownership; target: string }
  | { kind: "file"; layer: number; content: Content };
type DirectoryNode = Node & { kind: "directory" };

/** The entries to write, parents before children. */
export interface UnpackPlan {
  directories: { path: string; meta: Ownership }[];
  symlinks: { path: string; target: string; meta: Ownership }[];
  /** By layer, then by the entry's number in it. */
  contents: Map<number, Content>[];
  totalBytes: number;
  /** Number of devices and FIFOs, which are left out. */
  leftOut: number;
}

const plainDirectory: Ownership = { mode: 0o755, uid: 0, gid: 0, modifiedAtSeconds: 0 };
const whiteout = ".wh.";
const opaque = ".wh..wh..opq";

export class ImageTree {
  readonly #root = directoryNode(-1, plainDirectory, 0);
  readonly #contents: Map<number, Content>[] = [];
  #layer = -1;
  #entries = 0;
  #leftOut = 0;

  /** The entries that follow belong to the next layer up. */
  beginLayer(): void {
    this.#layer += 1;
    this.#contents.push(new Map());
  }

  /** Adds entry number `index` of the layer. Throws ImageError if it would leave the root or links to nothing. */
  add(entry: TarEntry, index: number): void {
    this.#entries += 1;
    if (this.#entries > imageLimits.entries)
      throw new ImageError(`the image has more than ${imageLimits.entries} entries`);
    const parts = splitPath(entry.path);
    const name = parts.pop();
    if (name === undefined) {
      if (entry.kind === "directory") this.#root.meta = ownership(entry);
      return;
    }
    if (name.startsWith(whiteout)) {
      this.#whiteOut(parts, name);
      return;
    }
    if (entry.kind === "special") {
      this.#leftOut += 1;
      return;
    }
    const parent = this.#directory(parts);
    const made = this.#make(entry, index, pathBelow(parent, name));
    const present = parent.children.get(name);
    if (made.kind === "directory" && present?.kind === "directory") {
      present.layer = this.#layer;
      present.meta = made.meta;
    } else parent.children.set(name, made);
  }

  plan(): UnpackPlan {
    const plan: UnpackPlan = {
      directories: [],
      symlinks: [],
      contents: this.#contents,
      totalBytes: 0,
      leftOut: this.#leftOut,
    };
    const visit = (node: DirectoryNode, path: string): void => {
      plan.directories.push({ path, meta: node.meta });
      for (const [name, child] of node.children) {
        const childPath = path === "" ? name : `${path}/${name}`;
        if (child.kind === "directory") visit(child, childPath);
        else if (child.kind === "symlink")
          plan.symlinks.push({ path: childPath, target: child.target, meta: child.meta });
        else {
          if (child.content.names.length === 0) plan.totalBytes += child.content.sizeBytes;
          if (child.content.names.push(childPath) > imageLimits.hardLinks)
            throw new ImageError(
              `the image gives ${show(childPath)} more than ${imageLimits.hardLinks} names`,
            );
        }
      }
    };
    visit(this.#root, "");
    for (const contents of this.#contents) {
      for (const [index, content] of contents) if (content.names.length === 0) contents.delete(index);
    }
    return plan;
  }

  #make(entry: TarEntry, index: number, pathBytes: number): Node {
    const layer = this.#layer;
    if (entry.kind === "directory") return directoryNode(layer, ownership(entry), pathBytes);
    if (entry.kind === "symlink")
      return { kind: "symlink", layer, meta: ownership(entry), target: linkTarget(entry) };
    if (entry.kind === "file") {
      const content: Content = { ...ownership(entry), sizeBytes: entry.sizeBytes, names: [] };
      this.#contents[layer]?.set(index, content);
      return { kind: "file", layer, content };
    }
    const target = this.#find(splitPath(entry.link));
    if (target === undefined || target.kind === "directory") {
      throw new ImageError(
        `a layer links ${show(entry.path)} to ${show(entry.link)}, which is no file of the image`,
      );
    }
    return { ...target, layer };
  }

  /** Removes entries of lower layers at a path; entries of this layer stay. */
  #whiteOut(parts: readonly string[], name: string): void {
    const parent = this.#find(parts);
    if (parent?.kind !== "directory") return;
    if (name === opaque) this.#prune(parent);
    else if (!name.startsWith(`${whiteout}${whiteout}`)) {
      const hidden = name.slice(whiteout.length);
      const child = parent.children.get(hidden);
      if (child?.kind === "directory" && child.layer === this.#layer) this.#prune(child);
      else if (child !== undefined && child.layer < this.#layer) parent.children.delete(hidden);
    }
  }

  #prune(directory: DirectoryNode): void {
    for (const [name, child] of directory.children) {
      if (child.layer < this.#layer) directory.children.delete(name);
      else if (child.kind === "directory") this.#prune(child);
    }
  }

  /** The directory at a path. Missing directories are made; links on the way are followed within the root. */
  #directory(parts: readonly string[]): DirectoryNode {
    return this.#walk(parts, true) as DirectoryNode;
  }

  /** The entry at a path: links on the way are followed, a final link is not. */
  #find(parts: readonly string[]): Node | undefined {
    const name = parts.at(-1);
    if (name === undefined) return this.#root;
    const parent = this.#walk(parts.slice(0, -1), false);
    return parent?.kind === "directory" ? parent.children.get(name) : undefined;
  }

  #makeDirectory(parent: DirectoryNode, name: string): DirectoryNode {
    const made = directoryNode(this.#layer, plainDirectory, pathBelow(parent, name));
    parent.children.set(name, made);
    return made;
  }

  #walk(parts: readonly string[], make: boolean): Node | undefined {
    const rest = [...parts].reverse();
    const path: DirectoryNode[] = [this.#root];
    let hops = 0;
    for (let name = rest.pop(); name !== undefined; name = rest.pop()) {
      const at = path.at(-1) ?? this.#root;
      if (name === "..") {
        if (path.length > 1) path.pop();
        continue;
      }
      const child = at.children.get(name);
      if (child?.kind === "symlink") {
        hops += 1;
        if (hops > imageLimits.symlinkHops)
          throw new ImageError(`a layer has a loop of links at ${show(name)}`);
        if (child.target.startsWith("/")) path.length = 1;
        rest.push(
          ...child.target
            .split("/")
            .filter((part) => part !== "" && part !== ".")
            .reverse(),
        );
        continue;
      }
      if (child?.kind !== "directory" && !make) return undefined;
      const next = child?.kind === "directory" ? child : this.#makeDirectory(at, name);
      if (make) next.layer = this.#layer;
      path.push(next);
    }
    return path.at(-1);
  }
}

const directoryNode = (layer: number, meta: Ownership, pathBytes: number): DirectoryNode => ({
  kind: "directory",
  layer,
  meta,
  pathBytes,
  children: new Map(),
});

/** The length of a path in a directory, with links on the way resolved; limits the depth of the tree. */
function pathBelow({ pathBytes }: DirectoryNode, name: string): number {
  const bytes = pathBytes + 1 + name.length;
  if (bytes > imageLimits.pathBytes) throw new ImageError("a layer has a path that is too long");
  return bytes;
}

function ownership({ path, mode, uid, gid, modifiedAtSeconds }: TarEntry): Ownership {
  for (const id of [uid, gid]) {
    if (id < 0 || id > imageLimits.ownerId)
      throw new ImageError(`a layer's ${show(path)} has the owner ${id}, which no file can have`);
  }
  return { mode, uid, gid, modifiedAtSeconds };
}

function linkTarget({ path, link }: TarEntry): string {
  if (link === "" || link.length > imageLimits.linkTargetBytes || link.includes("\0"))
    throw new ImageError(`a layer's ${show(path)} links to a path that no link can have`);
  return link;
}

/** The names of a path, without empty ones and dots. Throws where it would leave the root or is too long. */
function splitPath(path: string): string[] {
  if (path.length > imageLimits.pathBytes) throw new ImageError("a layer has a path that is too long");
  if (path.includes("\0")) throw new ImageError(`a layer has the path ${show(path)}, with a NUL in it`);
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  for (const part of parts) {
    if (part === "..")
      throw new ImageError(`a layer has the entry ${show(path)}, which would leave the container's root`);
    if (part.length > imageLimits.nameBytes) throw new ImageError("a layer has a name that is too long");
  }
  return parts;
}

/** A path for a message. */
export const show = (path: string): string =>
  JSON.stringify(Buffer.from(path.slice(0, 200), "latin1").toString("utf8"));
