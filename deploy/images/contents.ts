// What lies in the images: Debian with what the parts call, this checkout's code with the packages that it imports, and for
// hosts the artifacts that a start would otherwise build (gVisor, base image, agent).
import { execFileSync } from "node:child_process";
import { lstatSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const checkout = fileURLToPath(new URL("../../", import.meta.url));

/** Where the code lies in the images. */
export const CODE_DIR = "opt/cloche";
/** Where a host's image has its artifacts (CLOCHE_ARTIFACTS). */
export const ARTIFACTS_DIR = "opt/cloche-artifacts";

/** Beyond the packages that Debian calls required. What Node needs, and what hosts call (host-packages.ts). */
export const DEBIAN_PACKAGES = [
  "ca-certificates",
  "libstdc++6",
  "e2fsprogs",
  "iproute2",
  "mount",
  "nftables",
  "util-linux",
  "xfsprogs",
  "zstd",
];

/** Tracked files without which no part runs; tests stay out. Relative to the checkout, sorted. */
export function codeFiles(): string[] {
  const words = ["ls-files", "-z", "--", "package.json", "packages", "native"];
  return execFileSync("git", words, { cwd: checkout, encoding: "utf8", maxBuffer: 1 << 26 })
    .split("\0")
    .filter((path) => path !== "" && !/\.test\.ts$|\.md$/.test(path))
    .toSorted();
}

interface Locked {
  readonly dev?: boolean;
  readonly devOptional?: boolean;
  readonly link?: boolean;
}

/** Folders of the npm packages that servers import, and links to our own. Relative to the checkout, sorted. */
export function modulePaths(): string[] {
  const lock = JSON.parse(readFileSync(join(checkout, "package-lock.json"), "utf8")) as {
    packages: Record<string, Locked>;
  };
  const paths = Object.entries(lock.packages)
    .filter(([path, one]) => path.startsWith("node_modules/") && !one.dev && !one.devOptional)
    .map(([path]) => path)
    // Node itself lies elsewhere in the image, and the other architecture's is not installed.
    .filter((path) => !path.startsWith("node_modules/node-linux-") && isThere(path))
    .toSorted();
  // One below another comes with it; twice in an archive it would be a link to itself.
  return paths.filter((path) => !paths.some((other) => path.startsWith(`${other}/`)));
}

const isThere = (path: string): boolean =>
  lstatSync(join(checkout, path), { throwIfNoEntry: false }) !== undefined;

/** The command of every image: `cloche gateway`, `cloche edge`, `cloche host`, `cloche join-token …`. */
export const COMMAND = `#!/bin/sh
# One of the parts of Cloche: cloche gateway | edge | host | up, or an operator's command.
UV_THREADPOOL_SIZE="\${UV_THREADPOOL_SIZE:-16}"
export UV_THREADPOOL_SIZE
exec /usr/local/bin/node --disable-warning=ExperimentalWarning /${CODE_DIR}/packages/app/src/main.ts "$@"
`;
