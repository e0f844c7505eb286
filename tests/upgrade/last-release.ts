// The release before this one as a checkout of its own, out of this repository's history, so that a test can start it.
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** Its gVisor is Debian's of July 2024. Change it with every release. */
export const LAST_RELEASE = "3f230979b17a42b86c3473debfc7db1fb6a15465";

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
 * Unpacks the release into the empty folder `into`. Its npm packages are those of this checkout where both lock the same; where
 * not, its first command installs its own.
 */
export function unpackLastRelease(into: string): void {
  const archive = execFileSync("git", ["archive", LAST_RELEASE], { cwd: root, maxBuffer: 256 * 1024 * 1024 });
  execFileSync("tar", ["x", "-C", into], { input: archive });
  const lock = (checkout: string): string => readFileSync(join(checkout, "package-lock.json"), "utf8");
  if (lock(root) === lock(into)) linkPackages(join(root, "node_modules"), into);
}

/** Every package but those of the workspace, which are the release's own. */
function linkPackages(from: string, into: string): void {
  const to = join(into, "node_modules");
  mkdirSync(join(to, "@cloche"), { recursive: true });
  for (const name of readdirSync(from)) {
    if (name !== "@cloche" && !isCache(name)) symlinkSync(join(from, name), join(to, name));
  }
  for (const name of readdirSync(join(into, "packages")))
    symlinkSync(join(into, "packages", name), join(to, "@cloche", name));
}

const isCache = (name: string): boolean => /^\.(?:cache|vite)/.test(name);
