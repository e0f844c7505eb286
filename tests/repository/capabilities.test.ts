// Which code may reach what is dangerous or costly to spread: the database, child processes, the signing of tokens.
import { describe, expect, test } from "vitest";
import { importsOf, type SourceFile, sourceFiles } from "./source-tree.ts";

interface Capability {
  readonly name: string;
  /** Whether a file uses it. */
  readonly usedBy: (file: SourceFile) => boolean;
  /** Path prefixes that may. */
  readonly allowedIn: readonly string[];
  /** A file that must be caught. */
  readonly offender: SourceFile;
}

const imports =
  (...modules: readonly string[]) =>
  (file: SourceFile) =>
    importsOf(file).some((specifier) =>
      modules.some((module) => specifier === module || specifier.startsWith(`${module}/`)),
    );

/** Tests, benchmarks and scripts may do what they must to check the rest. */
const testing = ["tests/", "bench/", "scripts/", "deploy/"];

const capabilities: readonly Capability[] = [
  {
    name: "the database (kysely, pg)",
    usedBy: imports("kysely", "pg"),
    allowedIn: ["packages/gateway/src/database/", ...testing],
    offender: { path: "packages/gateway/src/lifecycle/x.ts", text: 'import { sql } from "kysely";' },
  },
  {
    name: "node:sqlite",
    usedBy: imports("node:sqlite"),
    // The agent's store is a database of its own, inside the sandbox.
    allowedIn: ["packages/gateway/src/database/", "packages/agent/src/store/", ...testing],
    offender: {
      path: "packages/agent/src/services/x.ts",
      text: 'import { DatabaseSync } from "node:sqlite";',
    },
  },
  {
    name: "child processes",
    usedBy: imports("node:child_process", "child_process", "@cloche/base/run", "@cloche/base/file-lock"),
    allowedIn: [
      "packages/base/src/commands/",
      "packages/artifacts/",
      "packages/host/",
      "packages/app/",
      "packages/cli/",
      "packages/agent/src/spawner/",
      "packages/agent/src/oci-images/",
      // Runs at set-up, on the host.
      "packages/agent/build-addon.ts",
      "packages/agent/build-native.ts",
      "packages/agent/build.ts",
      // A VM's agent mounts its disk itself; users' commands never come this way.
      "packages/agent/src/control/block-device.ts",
      ...testing,
    ],
    offender: { path: "packages/edge/src/x.ts", text: 'import { execFile } from "node:child_process";' },
  },
  {
    name: "signing of tokens",
    usedBy: (file) =>
      /\b(SignJWT|CompactSign|FlattenedSign|GeneralSign|createSign)\b/.test(file.text) ||
      /import\s*\{[^}]*\bsign\b[^}]*\}\s*from\s*"node:crypto"/.test(file.text),
    allowedIn: ["packages/gateway/src/tokens/", ...testing],
    offender: { path: "packages/edge/src/x.ts", text: 'import { SignJWT } from "jose";' },
  },
  {
    name: "cluster, vm and inspector",
    usedBy: imports("node:cluster", "node:vm", "node:inspector"),
    allowedIn: testing,
    offender: { path: "packages/agent/src/x.ts", text: 'import vm from "node:vm";' },
  },
];

/** Unit tests and their stand-ins may fake or check what the code itself may not reach. */
const isForTests = (path: string): boolean =>
  path.endsWith(".test.ts") || /^packages\/[^/]+\/src\/(.+\/)?testing\//.test(path);

/** What runs in production must not lean on stand-ins. */
const importsOfStandIns = (files: readonly SourceFile[]): string[] =>
  files
    .filter((file) => file.path.startsWith("packages/") && !isForTests(file.path))
    .filter((file) => importsOf(file).some((specifier) => /\/testing(\/|$)/.test(specifier)))
    .map((file) => `${file.path} imports a stand-in of the tests`);

function offences(capability: Capability, files: readonly SourceFile[]): string[] {
  return files
    .filter((file) => !isForTests(file.path) && capability.usedBy(file))
    .filter((file) => !capability.allowedIn.some((prefix) => file.path.startsWith(prefix)))
    .map((file) => `${file.path} uses ${capability.name}; only ${capability.allowedIn.join(", ")} may`);
}

const files = sourceFiles([".ts", ".tsx", ".js", ".mjs"]);

describe.each(capabilities)("$name", (capability) => {
  test("is used only where it may be", () => {
    expect(offences(capability, files)).toEqual([]);
  });

  test("is caught elsewhere", () => {
    expect(offences(capability, [capability.offender])).toHaveLength(1);
  });
});

describe("stand-ins of the tests", () => {
  test("are used by tests only", () => {
    expect(importsOfStandIns(files)).toEqual([]);
    const offender = { path: "packages/edge/src/edge.ts", text: 'import { rig } from "./testing/rig.ts";' };
    expect(importsOfStandIns([offender])).toHaveLength(1);
  });
});
