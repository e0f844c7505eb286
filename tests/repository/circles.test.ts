// No file or folder imports, or includes, one that leads back to it.
import { describe, expect, test } from "vitest";
import { folderImports, includes, rings, typeScriptImports } from "./circles.ts";
import { sourceFiles } from "./source-tree.ts";

const file = (path: string, text: string) => ({ path, text });

describe("circles", () => {
  test("are not among TypeScript files", () => {
    const graph = typeScriptImports(sourceFiles([".ts"]));
    expect(graph.size).toBeGreaterThan(400);
    expect(rings(graph)).toEqual([]);
  });

  test("are not among the folders of a package", () => {
    const files = sourceFiles([".ts"]).filter(
      ({ path }) => !path.endsWith(".test.ts") && !path.includes("/testing/"),
    );
    const graph = folderImports(files);
    expect(graph.size).toBeGreaterThan(100);
    expect(rings(graph)).toEqual([]);
  });

  test("are not among C modules", () => {
    const graph = includes(sourceFiles([".c", ".h"]));
    expect(graph.size).toBeGreaterThan(30);
    expect(rings(graph)).toEqual([]);
  });

  test("are found through types, re-exports and several files", () => {
    const graph = typeScriptImports([
      file("a/x.ts", 'import type { Y } from "./y.ts";'),
      file("a/y.ts", 'export { z } from "../b/z.ts";'),
      file("b/z.ts", 'import "../a/x.ts";'),
      file("b/end.ts", 'import "./z.ts";'),
    ]);
    expect(rings(graph)).toEqual([["a/x.ts", "a/y.ts", "b/z.ts"]]);
  });

  test("are found between folders, but not at files beside subfolders", () => {
    const graph = folderImports([
      file("p/main.ts", 'import "./a/x.ts";'),
      file("p/limits.ts", ""),
      file("p/a/x.ts", 'import "../b/y.ts"; import "../limits.ts";'),
      file("p/a/z.ts", ""),
      file("p/b/y.ts", 'import "../a/z.ts";'),
    ]);
    expect(rings(graph)).toEqual([["p/a", "p/b"]]);
  });

  test("are found through headers", () => {
    const graph = includes([
      file("n/a.c", '#include "a.h"\n#include "b.h"'),
      file("n/a.h", "#include <stdio.h>"),
      file("n/b.c", '#include "b.h"\n'),
      file("n/b.h", '#include "a.h"'),
    ]);
    expect(rings(graph)).toEqual([["n/a", "n/b"]]);
  });
});
