// No file imports, or includes, one that leads back to it.
import { describe, expect, test } from "vitest";
import { includes, rings, typeScriptImports } from "./circles.ts";
import { sourceFiles } from "./source-tree.ts";

const file = (path: string, text: string) => ({ path, text });

describe("circles", () => {
  test("are not among TypeScript files", () => {
    const graph = typeScriptImports(sourceFiles([".ts"]));
    expect(graph.size).toBeGreaterThan(400);
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
