// The release before this one as a checkout of its own, out of this repository's history, so that a test can start it.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** Change it with every release. */
export const LAST_RELEASE = "861e6926dbd8c82fef06ef8778df764920c2242c";

/** Why the release cannot be had here; undefined: it can. */
export function whyNoLastRelease(): string | undefined {
  try {
    execFileSync("git", ["cat-file", "-e", `${LAST_RELEASE}^{commit}`], { cwd: root, stdio: "ignore" });
    return undefined;
  } catch {
    return `commit ${LAST_RELEASE.slice(0, 7)}, the last release, is not in this checkout's history (git fetch --unshallow)`;
  }
}

/**
 * Unpacks the release into the empty folder `into`. Its npm packages are those of this checkout where this one locks all of them
 * at the same version; where not, the release's first command installs its own.
 */
export function unpackLastRelease(into: string): void {
  const archive = execFileSync("git", ["archive", LAST_RELEASE], { cwd: root, maxBuffer: 256 * 1024 * 1024 });
  execFileSync("tar", ["x", "-C", into], { input: archive });
  const [ours, theirs] = [lockedIn(root), lockedIn(into)];
  if (Object.entries(theirs).every(([path, version]) => ours[path] === version))
    linkPackages(join(root, "node_modules"), into);
}

/** The version of every installed package by its path; those of the workspace are left out. */
function lockedIn(checkout: string): Record<string, string> {
  const lock = JSON.parse(readFileSync(join(checkout, "package-lock.json"), "utf8")) as Lock;
  return Object.fromEntries(
    Object.entries(lock.packages).flatMap(([path, { version, link }]) =>
      /(?:^|\/)node_modules\//.test(path) && !link && version !== undefined ? [[path, version]] : [],
    ),
  );
}

interface Lock {
  readonly packages: Record<string, { version?: string; link?: boolean }>;
}

/** Every package but those of the workspace, which are the release's own. */
function linkPackages(from: string, into: string): void {
  const to = join(into, "node_modules");
  mkdirSync(join(to, "@cloche"), { recursive: true });
  for (const name of readdirSync(from)) {
    if (name !== "@cloche" && !isCache(name) && name !== STAMP) symlinkSync(join(from, name), join(to, name));
  }
  for (const name of readdirSync(join(into, "packages")))
    symlinkSync(join(into, "packages", name), join(to, "@cloche", name));
  // As the release's scripts/node.sh leaves it after an installation.
  const hash = createHash("sha256");
  for (const file of ["package-lock.json", "scripts/node.sh"]) hash.update(readFileSync(join(into, file)));
  writeFileSync(join(to, STAMP), `${hash.digest("hex")}\n`);
}

const STAMP = ".cloche-installed";

const isCache = (name: string): boolean => /^\.(?:cache|vite)/.test(name);
