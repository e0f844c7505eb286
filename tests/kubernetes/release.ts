// Two releases of Cloche as an operator has them: this checkout's, and a next one whose number and agent differ, from a copy of
// this checkout. Of each its chart, and its images in one file.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { modulePaths } from "../../deploy/images/contents.ts";
import { repositoryRoot } from "../fixtures/service.ts";

export interface Release {
  /** Of the packages, of the chart, and the images' tag. */
  readonly version: string;
  readonly chart: string;
  /** For `ctr images import`. */
  readonly images: string;
}

/** Where a release's number is written; the chart's is the images' tag. */
const NUMBERED = /^(package\.json|packages\/[a-z0-9]+\/package\.json|deploy\/helm\/cloche\/Chart\.yaml)$/;
const AGENT = "packages/agent/src/control/guest-service.ts";
const BUNDLER = ["node_modules/esbuild", "node_modules/@esbuild"];

export function releaseOf(checkout: string, out: string, cache: string): Release {
  const version = versionOf(checkout);
  const words = ["deploy/images/build.ts", "--out", out, "--tag", version, "--cache", cache];
  execFileSync(process.execPath, words, { cwd: checkout, stdio: "inherit" });
  return { version, chart: join(checkout, "deploy/helm/cloche"), images: join(out, "images.tar") };
}

/** Copies this checkout into the empty folder `into`, as the release after it. */
export function nextCheckout(into: string): void {
  const [version, next] = [versionOf(repositoryRoot), nextOf(versionOf(repositoryRoot))];
  const git = (folder: string, ...words: string[]): string =>
    execFileSync("git", words, { cwd: folder, encoding: "utf8", maxBuffer: 1 << 26 });
  const parts = [".gitignore", "package.json", "package-lock.json", "packages", "native", "deploy"];
  const tracked = git(repositoryRoot, "ls-files", "-z", "--", ...parts);
  for (const path of tracked.split("\0").filter(Boolean)) {
    const to = join(into, path);
    mkdirSync(dirname(to), { recursive: true });
    if (NUMBERED.test(path) || path === AGENT) writeFileSync(to, renumbered(path, version, next));
    else cpSync(join(repositoryRoot, path), to);
  }
  copyPackages(into);
  // Images hold what git tracks.
  git(into, "init", "--quiet");
  git(into, "add", "--all");
}

function renumbered(path: string, version: string, next: string): string {
  const text = readFileSync(join(repositoryRoot, path), "utf8");
  if (!text.includes(version)) throw new Error(`${path} does not have the release's number ${version}`);
  return text.replaceAll(version, next);
}

/** Those that images hold, and the bundler of the agent. */
function copyPackages(into: string): void {
  for (const path of [...modulePaths(), ...BUNDLER])
    cpSync(join(repositoryRoot, path), join(into, path), { recursive: true, verbatimSymlinks: true });
}

const versionOf = (checkout: string): string =>
  (JSON.parse(readFileSync(join(checkout, "package.json"), "utf8")) as { version: string }).version;

const nextOf = (version: string): string => version.replace(/\d+$/, (patch) => String(Number(patch) + 1));
