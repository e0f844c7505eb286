// Documents that stay readable: lines of at most 120 characters (rows of a table may be longer), links and named paths that exist.
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { describe, expect, test } from "vitest";
import { withSummary } from "../../compat/table.ts";
import { repositoryPaths, repositoryRoot, type SourceFile, sourceFiles } from "./source-tree.ts";

const MAX_COLUMNS = 120;
const MAP_LINES = 250;
const pages = sourceFiles([".md"]);
const paths = new Set(repositoryPaths());

const tooWide = (files: readonly SourceFile[]): string[] =>
  files.flatMap(({ path, text }) =>
    text
      .split("\n")
      .flatMap((line, at) =>
        [...line].length > MAX_COLUMNS && !line.startsWith("|") ? [`${path}:${at + 1}`] : [],
      ),
  );

/** Relative links of Markdown whose file is not there. */
const brokenLinks = (files: readonly SourceFile[]): string[] =>
  files.flatMap(({ path, text }) =>
    [...text.matchAll(/\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)/g)]
      .map((match) => normalize(join(dirname(path), match[1] ?? "")))
      .filter((target) => !existsSync(join(repositoryRoot, target)))
      .map((target) => `${path}: ${target}`),
  );

/** Paths in backquotes that look like ours (`packages/…`, `native/…`, `tests/…`, …) and are not there. */
const brokenPaths = (files: readonly SourceFile[]): string[] =>
  files.flatMap(({ path, text }) =>
    [...text.matchAll(/`((?:packages|native|tests|spec|scripts|bench|docs|deploy)\/[\w./-]+)`/g)]
      .map((match) => (match[1] ?? "").replace(/\/$/, ""))
      .filter((target) => !paths.has(target) && !existsSync(join(repositoryRoot, target)))
      .map((target) => `${path}: ${target}`),
  );

describe("documents", () => {
  test(`have lines of at most ${MAX_COLUMNS} characters`, () => {
    expect(tooWide(pages)).toEqual([]);
    expect(tooWide([{ path: "x.md", text: `a\n${"é".repeat(MAX_COLUMNS + 1)}` }])).toEqual(["x.md:2"]);
  });
  test("link to pages that exist", () => {
    expect(brokenLinks(pages)).toEqual([]);
    const path = "docs/llms.txt";
    const llms = { path, text: readFileSync(join(repositoryRoot, path), "utf8") };
    expect(llms.text.match(/^- \[/gm)?.length).toBeGreaterThan(10);
    expect(brokenLinks([llms])).toEqual([]);
    expect(brokenLinks([{ path: "docs/x.md", text: "[a](no-such.md#b) [c](../README.md)" }])).toHaveLength(1);
  });
  test("name files that exist", () => {
    expect(brokenPaths(pages.filter(({ path }) => path !== "CHANGELOG.md"))).toEqual([]);
    expect(brokenPaths([{ path: "x.md", text: "`packages/no/such.ts` `packages/base`" }])).toHaveLength(1);
  });
  test(`the map has at most ${MAP_LINES} lines`, () => {
    const map = pages.find(({ path }) => path === "ARCHITECTURE.md");
    expect(map?.text.split("\n").length).toBeLessThanOrEqual(MAP_LINES);
  });
});

test("the README's table of suites has the numbers of docs/compatibility.md", () => {
  const [readme, page] = ["README.md", "docs/compatibility.md"].map((path) =>
    readFileSync(join(repositoryRoot, path), "utf8"),
  ) as [string, string];
  expect(readme).toContain("<!-- compatibility -->");
  expect(withSummary(readme, page)).toBe(readme);
  const other = page.replace(/(\(\.\.\/compat\/e2b-javascript\.ts\).*?\| )\d+ \|/, "$1 1 |");
  expect(withSummary(readme, other)).not.toBe(readme);
});
