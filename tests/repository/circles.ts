// Rings of files that import one another, types included: none of them can be read, tested or moved without the others.
import { posix } from "node:path";
import { importsOf, type SourceFile } from "./source-tree.ts";

type Graph = ReadonlyMap<string, readonly string[]>;

/** Which file imports which, by relative paths. Imports across packages go by name, and the star forbids circles among those. */
export function typeScriptImports(files: readonly SourceFile[]): Graph {
  return new Map(
    files.map((file) => [
      file.path,
      importsOf(file)
        .filter((specifier) => specifier.startsWith("."))
        .map((specifier) => posix.join(posix.dirname(file.path), specifier)),
    ]),
  );
}

/**
 * The same between folders. A file beside subfolders, such as those of a package's root, stands for itself: it may put together what the
 * subfolders have.
 */
export function folderImports(files: readonly SourceFile[]): Graph {
  const folders = files.map(({ path }) => posix.dirname(path));
  const parents = new Set(folders.map((folder) => posix.dirname(folder)));
  const nodeOf = (path: string): string => {
    const folder = posix.dirname(path);
    return parents.has(folder) ? path : folder;
  };
  const graph = new Map<string, string[]>();
  for (const [path, imported] of typeScriptImports(files)) {
    const node = nodeOf(path);
    const others = imported.map(nodeOf).filter((other) => other !== node);
    graph.set(node, [...(graph.get(node) ?? []), ...others]);
  }
  return graph;
}

/** Which C module needs which. A module is `x.c` with its `x.h`. */
export function includes(files: readonly SourceFile[]): Graph {
  const graph = new Map<string, string[]>();
  for (const file of files) {
    const module = moduleOf(file.path);
    const needed = [...file.text.matchAll(/^#include "([^"]+)"/gm)]
      .map((match) => moduleOf(posix.join(posix.dirname(file.path), match[1] ?? "")))
      .filter((other) => other !== module);
    graph.set(module, [...(graph.get(module) ?? []), ...needed]);
  }
  return graph;
}

const moduleOf = (path: string): string => path.replace(/\.[ch]$/, "");

/** Sets of nodes each of which reaches the others (Tarjan's strongly connected components), sorted; single nodes are left out. */
export function rings(graph: Graph): string[][] {
  const index = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const onStack = new Set<string>();
  const found: string[][] = [];
  const visit = (node: string): void => {
    index.set(node, index.size);
    low.set(node, index.size - 1);
    stack.push(node);
    onStack.add(node);
    for (const next of graph.get(node) ?? []) {
      if (!index.has(next)) visit(next);
      if (onStack.has(next)) low.set(node, Math.min(low.get(node) ?? 0, low.get(next) ?? 0));
    }
    if (low.get(node) !== index.get(node)) return;
    const ring = stack.splice(stack.indexOf(node));
    for (const member of ring) onStack.delete(member);
    if (ring.length > 1) found.push(ring.sort());
  };
  for (const node of graph.keys()) if (!index.has(node)) visit(node);
  return found.sort();
}
