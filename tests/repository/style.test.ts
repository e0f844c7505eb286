// The shape of files and names: one noun per file, kebab-case, no drawers for odds and ends, no limits on
// reading: a file above 600 lines holds two nouns.
import { describe, expect, test } from "vitest";
import { repositoryPaths, type SourceFile, sourceFiles } from "./source-tree.ts";

const MAX_LINES = 600;
const bannedWords = new Set(["utils", "util", "helper", "helpers", "manager", "common", "misc"]);
/** Names that tools or custom give. */
const customNames = new Set([
  "README.md",
  "ARCHITECTURE.md",
  "SPECIFICATION.md",
  "SECURITY.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "PROTOCOL.md",
  "LICENSE",
  "Makefile",
  "Dockerfile",
  // Of clangd.
  "compile_flags.txt",
  // Of Helm.
  "Chart.yaml",
  "NOTES.txt",
  "_parts.tpl",
]);

const tooLong = (files: readonly SourceFile[]): string[] =>
  files
    .map((file) => ({ path: file.path, lines: file.text.split("\n").length - 1 }))
    .filter(({ lines }) => lines > MAX_LINES)
    .map(({ path, lines }) => `${path} has ${lines} lines; split it`);

/** Folders and files in kebab-case; dots part suffixes (`x.test.ts`, `dataplane.openapi.yaml`); protos in snake_case, and what Python imports. */
const wronglyNamed = (paths: readonly string[]): string[] =>
  paths.filter((path) =>
    path
      .replace(/^(clients|adapters)\/python\/(.*\/)?\w+\.(py|typed)$/, (module) =>
        module.replaceAll(/\b_+|_+\b/g, "").replaceAll("_", "-"),
      )
      .split("/")
      .some(
        (name) =>
          !customNames.has(name) &&
          !/^\.?[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)*$/.test(name) &&
          !/^[a-z0-9_]+\.proto$/.test(name),
      ),
  );

const bannedNames = (paths: readonly string[]): string[] =>
  paths.filter((path) => path.split(/[/.\-_]/).some((word) => bannedWords.has(word)));

/** Exported classes, functions and constants with a banned word in their name. */
const bannedSymbols = (files: readonly SourceFile[]): string[] =>
  files.flatMap((file) =>
    [...file.text.matchAll(/^export (?:abstract )?(?:class|function|const|interface|type) (\w+)/gm)]
      .map((match) => match[1] ?? "")
      .filter((name) => name.split(/(?=[A-Z])|_/).some((word) => bannedWords.has(word.toLowerCase())))
      .map((name) => `${file.path}: ${name}`),
  );

/** A debugger, a focused test or a skip without a reason must not land. */
const leftBehind = (files: readonly SourceFile[]): string[] =>
  files.flatMap((file) =>
    [
      ...file.text.matchAll(
        /^\s*(debugger;|(?:test|it|describe)\.(?:only|todo)\(|(?:test|it|describe)\.skip\()/gm,
      ),
    ].map((match) => `${file.path}: ${match[1] ?? ""}`),
  );

/** Comments in C are block comments: with strings and characters left out, nothing begins with two slashes. */
const lineComments = (files: readonly SourceFile[]): string[] =>
  files
    .filter(({ path }) => /\.[ch]$/.test(path))
    .filter(({ text }) => text.replaceAll(/"(?:\\.|[^"\\\n])*"|\/\*[\s\S]*?\*\//g, "").includes("//"))
    .map(({ path }) => `${path} has comments of the form //; write /* */`);

/** The comment that opens a file of a package is a block comment. */
const lineHeaders = (files: readonly SourceFile[]): string[] =>
  files
    .filter(({ path, text }) => /^packages\/.*\.ts$/.test(path) && text.startsWith("//"))
    .map(({ path }) => `${path} begins with a comment of the form //; write /** */`);

const code = sourceFiles([".ts", ".tsx", ".mjs", ".c", ".h", ".sh", ".py"]);
const paths = repositoryPaths();

describe("files", () => {
  test(`have at most ${MAX_LINES} lines`, () => {
    expect(tooLong(code)).toEqual([]);
    expect(tooLong([{ path: "x.ts", text: "\n".repeat(MAX_LINES + 1) }])).toHaveLength(1);
  });
  test("are named in kebab-case", () => {
    expect(wronglyNamed(paths)).toEqual([]);
    expect(wronglyNamed(["packages/a/src/badName.ts", "a_b/x.ts", "a/good-name.test.ts"])).toHaveLength(2);
    expect(
      wronglyNamed(["clients/python/src/_a/two_words.py", "clients/python/src/badName.py"]),
    ).toHaveLength(1);
  });
  test("are named after what they hold", () => {
    expect(bannedNames(paths)).toEqual([]);
    expect(
      bannedNames(["src/utils.ts", "src/common/x.ts", "src/disk-manager.ts", "src/disk.ts"]),
    ).toHaveLength(3);
  });
});

describe("source", () => {
  test("names its exports after what they are", () => {
    expect(bannedSymbols(code)).toEqual([]);
    expect(bannedSymbols([{ path: "x.ts", text: "export class DiskManager {}" }])).toHaveLength(1);
  });
  test("leaves no focused, skipped or unfinished test and no debugger", () => {
    expect(leftBehind(code)).toEqual([]);
    expect(leftBehind([{ path: "x.ts", text: "test.only(" }])).toHaveLength(1);
  });
  test("opens with one form of comment in packages", () => {
    expect(lineHeaders(code)).toEqual([]);
    const own = { path: "packages/a/src/a.ts", text: "/** What it owns. */\n// later" };
    expect(lineHeaders([own, { path: "packages/a/src/b.ts", text: "// What it owns." }])).toHaveLength(1);
  });
  test("has one form of comments in C", () => {
    expect(lineComments(code)).toEqual([]);
    const url = { path: "a.c", text: 'open("http://x"); /* see http://y */' };
    expect(lineComments([url, { path: "x.h", text: "int a; // b" }])).toHaveLength(1);
  });
});
