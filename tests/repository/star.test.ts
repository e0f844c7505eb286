// The star (ARCHITECTURE.md): who may import whom. `protocol` imports none of ours, `base` is for servers only, no server
// imports another; only the composition root, images, tests and benchmarks import across. Clients, adapters, E2B's endpoint
// and the compatibility runs import the public contract only.
import { posix } from "node:path";
import { describe, expect, test } from "vitest";
import { importsOf, partOf, type SourceFile, sourceFiles } from "./source-tree.ts";

const mayImport: Record<string, readonly string[]> = {
  protocol: [],
  base: ["protocol"],
  gateway: ["protocol", "base"],
  edge: ["protocol", "base"],
  trust: ["protocol", "base"],
  artifacts: ["protocol", "base"],
  host: ["protocol", "base", "artifacts"],
  // Bundled into one small file that starts with every sandbox: nothing of the servers' plumbing.
  agent: ["protocol"],
  sdk: ["protocol"],
  // A client of the public contract, as anybody could write it.
  mcp: ["protocol", "sdk"],
  cli: ["protocol", "sdk", "mcp"],
  e2b: ["protocol", "base", "sdk"],
  dashboard: ["protocol", "sdk"],
  scripts: ["protocol"],
  adapters: ["sdk"],
  // Runs others' suites with what the tests have.
  compat: ["tests"],
};
/** The only places that know several trust domains. */
const importAcross = new Set(["app", "tests", "bench", "deploy"]);

/** Offences against the star, one line each. */
function starOffences(files: readonly SourceFile[]): string[] {
  const offences: string[] = [];
  for (const file of files) {
    const part = partOf(file.path);
    for (const specifier of importsOf(file)) {
      const target = targetPart(file.path, specifier);
      if (target === undefined || target === part || importAcross.has(part)) continue;
      const allowed = mayImport[part];
      if (allowed === undefined)
        offences.push(`${file.path}: ${part} is no part of the star; add it to the table`);
      else if (!allowed.includes(target)) offences.push(`${file.path}: ${part} must not import ${specifier}`);
    }
  }
  return offences;
}

/** The part of ours that an import leads to; undefined for npm packages and Node's own modules. */
function targetPart(path: string, specifier: string): string | undefined {
  if (specifier.startsWith("@cloche/")) return specifier.split("/")[1];
  if (!specifier.startsWith(".")) return undefined;
  return partOf(posix.normalize(posix.join(posix.dirname(path), specifier)));
}

/** Imports across packages go by name, so that a package's `exports` decides what others see. */
function relativeAcross(files: readonly SourceFile[]): string[] {
  return files.flatMap((file) =>
    importsOf(file)
      .filter(
        (specifier) => specifier.startsWith(".") && targetPart(file.path, specifier) !== partOf(file.path),
      )
      .filter(() => file.path.startsWith("packages/"))
      .map((specifier) => `${file.path}: ${specifier} leaves the package; import it as @cloche/<package>`),
  );
}

/** Clients of the public contract: whatever they can do, anybody's client can do too. */
const clients = new Set(["sdk", "cli", "mcp", "e2b", "dashboard", "adapters", "compat"]);
/** What the protocol package has for them: not the calls between our own parts. */
const publicProtocol = new Set([
  "@cloche/protocol",
  "@cloche/protocol/public",
  "@cloche/protocol/connect-codes",
]);

/** Clients that import a contract between our own parts, what the tests have beyond fixtures, or a private module. */
function clientOffences(files: readonly SourceFile[]): string[] {
  const isPublic = (path: string, specifier: string): boolean => {
    const target = targetPart(path, specifier);
    if (target === "protocol") return publicProtocol.has(specifier);
    if (target === "tests") return specifier.startsWith("../tests/fixtures/");
    return true;
  };
  return files
    .filter(({ path }) => clients.has(partOf(path)))
    .flatMap((file) =>
      importsOf(file)
        .filter((specifier) => !isPublic(file.path, specifier))
        .map((specifier) => `${file.path}: ${specifier} is no part of the public contract`),
    );
}

/** Adapters in Python that import a private module of the client, or reach out of their folder. */
function pythonOffences(files: readonly SourceFile[]): string[] {
  const forms = /^\s*(?:from|import)\s+(cloche\.\S+|packages\S*|clients\S*|\.\.\S*)/gm;
  return files
    .filter(({ path }) => path.startsWith("adapters/python/"))
    .flatMap((file) => [...file.text.matchAll(forms)].map(([, name]) => `${file.path}: ${name}`));
}

const files = sourceFiles([".ts", ".tsx", ".js", ".mjs"]);

describe("the star of packages", () => {
  test("holds for every source file", () => {
    expect(files.length).toBeGreaterThan(40);
    expect(starOffences(files)).toEqual([]);
  });

  test("is not walked around by relative paths", () => {
    expect(relativeAcross(files)).toEqual([]);
  });

  test("keeps clients at the public contract", () => {
    expect(clientOffences(files)).toEqual([]);
    const python = sourceFiles([".py"]);
    expect(python.filter(({ path }) => path.startsWith("adapters/")).length).toBeGreaterThan(5);
    expect(pythonOffences(python)).toEqual([]);
  });

  test.each([
    ["packages/e2b/src/x.ts", 'import { HostService } from "@cloche/protocol/host";'],
    ["packages/mcp/src/x.ts", 'import "@cloche/protocol/guest";'],
    ["adapters/javascript/x/src/index.ts", 'import "@cloche/protocol/edge";'],
    ["compat/x.ts", 'import { GatewayRig } from "../tests/host/lab.ts";'],
  ])("catches a client that is none in %s", (path, text) => {
    expect(clientOffences([{ path, text }])).toHaveLength(1);
  });

  test("catches an adapter in Python that imports a private module", () => {
    const text = "import cloche\nfrom cloche._async import _transport\n";
    expect(pythonOffences([{ path: "adapters/python/x/src/x.py", text }])).toHaveLength(1);
  });

  test.each([
    ["packages/protocol/src/x.ts", 'import { log } from "@cloche/base";'],
    ["packages/edge/src/x.ts", 'export * from "@cloche/gateway";'],
    ["packages/agent/src/x.ts", 'import type { Log } from "@cloche/base";'],
    ["packages/sdk/src/x.ts", 'const a = await import("@cloche/host");'],
    ["packages/gateway/src/a/x.ts", 'import { b } from "../../../host/src/index.ts";'],
    ["packages/host/src/x.ts", 'import {\n  a,\n  b,\n} from "@cloche/agent";'],
    ["packages/unknown/src/x.ts", 'import "@cloche/protocol";'],
  ])("catches an offender in %s", (path, text) => {
    expect(starOffences([{ path, text }])).toHaveLength(1);
  });

  test("catches a relative import that leaves its package", () => {
    const offender = {
      path: "packages/app/src/x.ts",
      text: 'import { a } from "../../host/src/index.ts";',
    };
    expect(relativeAcross([offender])).toHaveLength(1);
  });

  test("lets the composition root, tests and benchmarks import across", () => {
    const text = 'import "@cloche/gateway"; import "@cloche/host"; import "@cloche/edge";';
    for (const path of ["packages/app/src/x.ts", "tests/e2e/x.ts", "bench/x.ts"])
      expect(starOffences([{ path, text }])).toEqual([]);
  });
});
