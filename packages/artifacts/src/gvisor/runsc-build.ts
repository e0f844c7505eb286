/**
 * Builds runsc from gVisor's Go module, because Debian has nothing newer than 2024. The module's checksum is pinned here; it covers
 * the module's go.sum, and so everything that is compiled. Sources, modules, caches and the tool chain (1.6 GB) are in the build's
 * temporary directory, which is removed even if the build fails.
 *
 * To move to another version: docs/operations.md, "gVisor".
 */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, readFile, rename, rm, statfs, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import { run } from "@cloche/base/run";
import { type Go, obtainGo, packageCounter } from "./go-tools.ts";
import { applyChanges } from "./runsc-changes.ts";
import { compileSeccomp } from "./runsc-seccomp.ts";
import { parseRunscVersion } from "./runsc-version.ts";

export const pinnedModule = {
  module: "gvisor.dev/gvisor",
  moduleVersion: "v0.0.0-20260905035102-160fafc42237",
  /** Checksum of the module's files, as in a go.sum. */
  sum: "h1:AU5+CtCvnBnxdZRNcZt1NfSLqgkXZVT3N/u6u1aXg44=",
  /** Named in images: two builds without a version would count as equal. */
  version: "20260905.0",
  toolchain: "go1.26.8",
} as const;

/** Checksum of the binary built with the official tool chain; equal for every directory and computer. */
export const expectedSha256: Partial<Record<NodeJS.Architecture, string>> = {
  x64: "384761da1b04ee457616a8c1b20c1ca383eac7b29d38554227734fbc89124e50",
};

/** Measured peak: 1.6 GB, with Debian's Go, the tool chain, the modules and the build. */
const spaceBytes = 1.8e9;

/** Content of manifest.json beside the binary: what it was built from. */
export interface BuildManifest {
  readonly module: string;
  readonly version: string;
  readonly go: string;
  readonly sha256: string;
  /** False: not the tested binary; undefined: no checksum is recorded for this architecture. */
  readonly as_expected: boolean | undefined;
  readonly built_at: string;
}

export interface BuildOptions {
  /** An empty directory, for `runsc` and `manifest.json`. */
  readonly into: string;
  readonly detail: (text: string) => void;
  /** Folders to search for `go`. */
  readonly path?: string;
}

export async function buildRunsc({ into: folder, detail, path }: BuildOptions): Promise<void> {
  // Go takes absolute paths only.
  const into = resolve(folder);
  await checkSpace(into);
  const work = join(into, "work");
  await mkdir(work);
  const { toolchain, version } = pinnedModule;
  const go = await obtainGo({ toolchain, work, detail, ...(path !== undefined && { path }) });
  detail(`fetching gVisor ${version} and ${toolchain} (Go modules)`);
  const source = await fetchSource(go, work);
  await applyChanges(source);
  const onLine = packageCounter(detail);
  detail("compiling, about a minute and a half on two cores: first its seccomp programs");
  await compileSeccomp(go, source, work, onLine);
  detail("compiling runsc");
  const program = join(work, "runsc");
  const setVersion = `-X ${pinnedModule.module}/runsc/version.version=${version}`;
  const options = ["-v", "-trimpath", "-buildvcs=false", `-ldflags=-s -w ${setVersion}`];
  await go.run(["build", ...options, "-o", program, "./runsc"], { cwd: source, onLine });
  const { stdout } = await run([program, "--version"]);
  if (parseRunscVersion(stdout)?.version !== version)
    throw new Error(`the runsc that was built says ${JSON.stringify(stdout.slice(0, 200))}, not ${version}`);
  await writeFile(
    join(into, "manifest.json"),
    `${JSON.stringify(await manifestOf(program, detail), null, 2)}\n`,
  );
  await rename(program, join(into, "runsc"));
  await rm(work, { recursive: true });
}

async function checkSpace(folder: string): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free < spaceBytes)
    throw new Error(
      `building gVisor needs ${gigabytes(spaceBytes)} GB of free space in ${folder} for a while, and there are ${gigabytes(free)} GB`,
    );
}

const gigabytes = (bytes: number): string => (bytes / 1e9).toFixed(1);

/** A writable copy of the module's sources, checked against the pinned checksum. */
async function fetchSource(go: Go, work: string): Promise<string> {
  const wanted = `${pinnedModule.module}@${pinnedModule.moduleVersion}`;
  // With -json a failure is printed only on stdout, so fetch without it first.
  await go.run(["mod", "download", wanted], { cwd: work });
  const { stdout } = await go.run(["mod", "download", "-json", wanted], { cwd: work });
  const { Dir: dir, Sum: sum } = JSON.parse(stdout) as { Dir?: string; Sum?: string };
  if (sum !== pinnedModule.sum || dir === undefined)
    throw new Error(
      `${wanted} has the checksum ${sum}, not the pinned ${pinnedModule.sum}: these are not gVisor's sources`,
    );
  const source = join(work, "source");
  await run(["cp", "-r", "--no-preserve=mode", dir, source], { deadlineMs: 300_000 });
  return source;
}

async function manifestOf(program: string, detail: (text: string) => void): Promise<BuildManifest> {
  const sha256 = await sha256Of(program);
  const expected = expectedSha256[process.arch];
  if (expected !== undefined && sha256 !== expected)
    detail(
      `this build has the checksum ${sha256}, not ${expected}: the sources are the pinned ones, the Go of this machine is not the official ${pinnedModule.toolchain}`,
    );
  return {
    module: `${pinnedModule.module}@${pinnedModule.moduleVersion}`,
    version: pinnedModule.version,
    go: pinnedModule.toolchain,
    sha256,
    as_expected: expected === undefined ? undefined : sha256 === expected,
    built_at: new Date().toISOString(),
  };
}

export async function sha256Of(path: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(path), hash);
  return hash.digest("hex");
}

export async function readManifest(folder: string): Promise<BuildManifest> {
  return JSON.parse(await readFile(join(folder, "manifest.json"), "utf8")) as BuildManifest;
}
