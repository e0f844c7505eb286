// The repository as the rules see it: its files by path, and what each source file imports. The rules are pure functions
// over these, so that each rule's test can also feed it an offender and see it caught.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface SourceFile {
  /** Relative to the repository's root, with slashes. */
  readonly path: string;
  readonly text: string;
}

export const repositoryRoot = fileURLToPath(new URL("../..", import.meta.url));

/** Folders that are not ours (installed, generated or written by tools), or whose names are a forge's. */
const notOurs = new Set([".git", ".github", ".node", "node_modules", "dist", "gen", "coverage", ".vitest"]);

/** Every file's path, sorted; `node_modules`, generated code and the like left out. */
export function repositoryPaths(root: string = repositoryRoot): string[] {
  const paths: string[] = [];
  const walk = (folder: string): void => {
    for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
      if (notOurs.has(entry.name)) continue;
      const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
      if (entry.isDirectory()) walk(path);
      else if (entry.isFile()) paths.push(path);
    }
  };
  walk("");
  return paths.sort();
}

/** The files of the repository that end in one of `extensions` (with the dot). */
export function sourceFiles(extensions: readonly string[], root: string = repositoryRoot): SourceFile[] {
  return repositoryPaths(root)
    .filter((path) => extensions.some((extension) => path.endsWith(extension)))
    .map((path) => ({ path, text: readFileSync(join(root, path), "utf8") }));
}

/** What a file imports: static and dynamic imports, re-exports, type imports and `require`, comments left out. */
export function importsOf(file: SourceFile): string[] {
  const code = file.text.replaceAll(/\/\*[\s\S]*?\*\//g, "").replaceAll(/^\s*\/\/.*$/gm, "");
  const found = new Set<string>();
  const forms = [
    /\b(?:import|export)\b[^;"'`]*?\bfrom\s*["']([^"']+)["']/g,
    /\bimport\s*["']([^"'\s]+)["']/g,
    /\b(?:import|require|createRequire\([^)]*\))\s*\(\s*["']([^"']+)["']/g,
  ];
  for (const form of forms) for (const match of code.matchAll(form)) found.add(match[1] ?? "");
  return [...found].sort();
}

/** `packages/gateway/src/x.ts` belongs to `gateway`; files outside of packages to their first folder. */
export function partOf(path: string): string {
  const [first = "", second = ""] = path.split("/");
  return first === "packages" ? second : first;
}
