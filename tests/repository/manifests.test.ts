// package.json files read as lists of capabilities: exact pins, one version of each dependency, nothing undeclared; and
// a lock that `npm ci` takes on any machine.
import { existsSync, readFileSync } from "node:fs";
import { builtinModules } from "node:module";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { importsOf, repositoryPaths, repositoryRoot, type SourceFile, sourceFiles } from "./source-tree.ts";

interface Manifest {
  readonly path: string;
  readonly name: string;
  readonly private?: boolean;
  readonly imports?: object;
  readonly license?: string;
  readonly dependencies?: Record<string, string>;
  readonly devDependencies?: Record<string, string>;
  readonly optionalDependencies?: Record<string, string>;
}
interface Lock {
  readonly packages: Record<string, { version?: string; optionalDependencies?: Record<string, string> }>;
}

const readJson = <T>(path: string): T => JSON.parse(readFileSync(join(repositoryRoot, path), "utf8")) as T;
const manifests: Manifest[] = repositoryPaths()
  .filter((path) => path === "package.json" || /^packages\/[^/]+\/package\.json$/.test(path))
  .map((path) => ({ ...readJson<Omit<Manifest, "path">>(path), path }));
const lock = readJson<Lock>("package-lock.json");

const dependenciesOf = (manifest: Manifest): [string, string][] =>
  [manifest.dependencies, manifest.devDependencies, manifest.optionalDependencies].flatMap((group) =>
    Object.entries(group ?? {}),
  );

function unpinned(all: readonly Manifest[]): string[] {
  return all.flatMap((manifest) =>
    dependenciesOf(manifest)
      .filter(([, version]) => !/^\d+\.\d+\.\d+(-[0-9a-z.-]+)?$/i.test(version))
      .map(([name, version]) => `${manifest.path}: ${name} is ${version}; pin it exactly`),
  );
}

function severalVersions(all: readonly Manifest[]): string[] {
  const versions = new Map<string, Set<string>>();
  for (const manifest of all) {
    for (const [name, version] of dependenciesOf(manifest))
      versions.set(name, (versions.get(name) ?? new Set()).add(version));
  }
  return [...versions]
    .filter(([, found]) => found.size > 1)
    .map(([name, found]) => `${name}: ${[...found].join(", ")}`);
}

/** Packages that a source file imports without its package.json naming them. Tests may use the workspace's own. */
function undeclared(all: readonly Manifest[], files: readonly SourceFile[]): string[] {
  const workspace = all.find((manifest) => manifest.path === "package.json");
  return all
    .filter((manifest) => manifest !== workspace)
    .flatMap((manifest) => {
      const folder = manifest.path.replace(/package\.json$/, "");
      const declared = new Set(dependenciesOf(manifest).map(([name]) => name));
      const forTests = new Set(workspace ? dependenciesOf(workspace).map(([name]) => name) : []);
      return files
        .filter((file) => file.path.startsWith(`${folder}src/`))
        .flatMap((file) =>
          importsOf(file)
            .filter((specifier) => !/^(\.|node:)/.test(specifier) && !builtinModules.includes(specifier))
            .map((specifier) =>
              specifier
                .split("/")
                .slice(0, specifier.startsWith("@") ? 2 : 1)
                .join("/"),
            )
            .filter(
              (name) => name !== manifest.name && !declared.has(name) && !(name in (manifest.imports ?? {})),
            )
            .filter(
              (name) =>
                !(
                  /\.test\.ts$|^packages\/[^/]+\/src\/(.+\/)?testing\//.test(file.path) && forTests.has(name)
                ),
            )
            .map((name) => `${file.path} imports ${name}, which ${manifest.path} does not name`),
        );
    });
}

/** npm leaves out of a lock what its registry could not answer, and then `npm ci` refuses that lock. */
function missingFromLock(whole: Lock): string[] {
  const found = (from: string, name: string): boolean => {
    for (let at = from; ; at = at.slice(0, Math.max(0, at.lastIndexOf("node_modules/") - 1))) {
      if (whole.packages[`${at === "" ? "" : `${at}/`}node_modules/${name}`]) return true;
      if (at === "") return false;
      if (!at.includes("node_modules/")) at = "";
    }
  };
  return Object.entries(whole.packages).flatMap(([path, entry]) =>
    Object.keys(entry.optionalDependencies ?? {})
      .filter((name) => !found(path, name))
      .map((name) => `${path || "package.json"} names ${name}, which the lock leaves out`),
  );
}

describe("package.json files", () => {
  test("are those of the star, under Apache-2.0", () => {
    expect(manifests.length).toBeGreaterThanOrEqual(10);
    expect(manifests.filter((manifest) => manifest.license !== "Apache-2.0").map(({ path }) => path)).toEqual(
      [],
    );
  });
  test("pin every version exactly", () => {
    expect(unpinned(manifests)).toEqual([]);
    const offender = { path: "x", name: "x", dependencies: { a: "^1.0.0", b: "1.0.0", c: "latest" } };
    expect(unpinned([offender])).toHaveLength(2);
  });
  test("agree on one version of each dependency", () => {
    expect(severalVersions(manifests)).toEqual([]);
    const one = { path: "x", name: "x", dependencies: { a: "1.0.0" } };
    expect(severalVersions([one, { ...one, dependencies: { a: "1.0.1" } }])).toHaveLength(1);
  });
  test("cannot be published: whoever has their names in a registry is somebody else", () => {
    expect(manifests.filter((one) => one.private !== true).map(({ path }) => path)).toEqual([]);
    const asked =
      /\b(npm (install|i)|npx|bunx?|pnpm|yarn|pip install|uvx?)\b.*(?<![\w./-])(@cloche\/\w|cloche(?![-\w./]))/;
    const asksRegistry = (line: string): boolean => asked.test(line) && !/npx"?,? "?cloche/.test(line);
    const pages = repositoryPaths().filter((path) => path.endsWith(".md"));
    const lines = pages.flatMap((path) => readFileSync(join(repositoryRoot, path), "utf8").split("\n"));
    expect(lines.filter(asksRegistry)).toEqual([]);
    for (const line of [
      "npm install @cloche/sdk",
      "npm i -g @cloche/cli",
      "pip install cloche",
      "uvx cloche",
    ])
      expect(asksRegistry(line), line).toBe(true);
  });
  test("name everything that the source imports", () => {
    expect(undeclared(manifests, sourceFiles([".ts"]))).toEqual([]);
    const offender = { path: "packages/edge/src/x.ts", text: 'import { Kysely } from "kysely";' };
    expect(undeclared(manifests, [offender])).toHaveLength(1);
  });
});

describe("package-lock.json", () => {
  test("knows every optional package of every platform", () => {
    expect(missingFromLock(lock)).toEqual([]);
    const offender = { packages: { "": { optionalDependencies: { a: "1.0.0" } } } };
    expect(missingFromLock(offender)).toHaveLength(1);
  });
});

describe("the documents a newcomer looks for", () => {
  test.each([
    ["README.md", "npm start"],
    ["ARCHITECTURE.md", "packages/"],
    ["SPECIFICATION.md", "bench"],
    ["SECURITY.md", "attacker"],
    ["CHANGELOG.md", "Keep a Changelog"],
    ["CONTRIBUTING.md", "npm test"],
    ["docs/glossary.md", "sandbox"],
    ["LICENSE", "Apache License"],
  ])("%s is there and speaks of %s", (path, phrase) => {
    expect(existsSync(join(repositoryRoot, path)), `${path} is missing`).toBe(true);
    expect(readFileSync(join(repositoryRoot, path), "utf8").toLowerCase()).toContain(phrase.toLowerCase());
  });
});
