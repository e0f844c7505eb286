// Files that a comment names, as `unit.ts` or `drivers/gvisor/unit.ts`, are there: a reader who follows one must not search in vain.
import { describe, expect, test } from "vitest";
import { repositoryPaths, type SourceFile, sourceFiles } from "./source-tree.ts";

const endings = "ts|c|h|md|yaml|proto|sh|go|mjs|cjs";
const named = new RegExp(
  String.raw`(?<![\w./<>*$-])((?:[\w@-]+/)*[a-z0-9][\w.-]*\.(?:${endings}))(?![\w/-])`,
  "gi",
);
/** Of other sources, made at run time or installation, or an example: `x.ts`, `packages/gateway/src/x.ts`. */
const elsewhere =
  /^((.*\/)?[a-z](\.test)?\.\w+|agent\.cjs|config\.yaml|config_precompiled\.go|dirent\.h|fs\/ext4\/ext4\.h)$/;

/** Comments of a file: line and block comments of C and TypeScript, and of shell, YAML and Python those after `#`. */
function commentsOf({ path, text }: SourceFile): string[] {
  if (/\.(sh|py|yaml)$/.test(path))
    return [...text.matchAll(/^\s*#(?!!) ?(.*)$/gm)].map((match) => match[1] ?? "");
  const block = [...text.matchAll(/\/\*[\s\S]*?\*\//g)].map(([comment]) => comment);
  const line = [...text.matchAll(/^\s*\/\/ ?(.*)$/gm)].map((match) => match[1] ?? "");
  return [...block, ...line];
}

/** What comments name and no file is called by. `paths`: of the repository. */
function brokenCitations(files: readonly SourceFile[], paths: readonly string[]): string[] {
  const known = new Set(paths.flatMap((path) => endsOf(path)));
  return files.flatMap((file) =>
    commentsOf(file)
      .flatMap((comment) => [...comment.matchAll(named)].map((match) => match[1] ?? ""))
      .filter((name) => !known.has(name) && !elsewhere.test(name))
      .map((name) => `${file.path} names ${name}`),
  );
}

/** `a/b/c.ts`, `b/c.ts`, `c.ts`. */
const endsOf = (path: string): string[] => {
  const parts = path.split("/");
  return parts.map((_, at) => parts.slice(at).join("/"));
};

describe("comments", () => {
  const paths = repositoryPaths();

  test("name files that exist", () => {
    const files = sourceFiles([".ts", ".c", ".h", ".sh", ".py"]);
    // This one has examples of names that are wrong.
    const others = files.filter(({ path }) => !path.endsWith("/citations.test.ts"));
    expect(brokenCitations(others, paths)).toEqual([]);
  });

  test("are caught where they do not", () => {
    const offenders = [
      { path: "a/x.ts", text: "// See no-such.ts, and unit.ts.\nconst a = 1;" },
      { path: "a/x.c", text: "/*\n * As wrong/place/unit.ts does (a/unit.ts).\n */" },
      { path: "a/x.sh", text: "#!/bin/sh\n# nothing.sh does the rest\n" },
      { path: "a/y.ts", text: 'import "./no-import.ts"; // no-such.md\n' },
    ];
    const found = brokenCitations(offenders, ["a/unit.ts"]);
    expect(found).toEqual([
      "a/x.ts names no-such.ts",
      "a/x.c names wrong/place/unit.ts",
      "a/x.sh names nothing.sh",
    ]);
  });
});
