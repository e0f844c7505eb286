/**
 * Debian packages that the host needs on the computer. Looks for the programs first and installs only missing ones, in one apt-get
 * call, so that a computer which has them needs neither apt nor a network.
 */
import { access, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { run, systemPath } from "@cloche/base/run";

/** A needed program and its package. `file`: a path, if it is no program on PATH. */
export interface HostNeed {
  readonly program?: string;
  readonly file?: string;
  readonly debianPackage: string;
}

const hostNeeds: readonly HostNeed[] = [
  { program: "mkfs.xfs", debianPackage: "xfsprogs" },
  { program: "mke2fs", debianPackage: "e2fsprogs" },
  { program: "resize2fs", debianPackage: "e2fsprogs" },
  { program: "nft", debianPackage: "nftables" },
  { program: "ip", debianPackage: "iproute2" },
  { program: "mount", debianPackage: "mount" },
  { program: "flock", debianPackage: "util-linux" },
  { program: "setpriv", debianPackage: "util-linux" },
  { program: "mmdebstrap", debianPackage: "mmdebstrap" },
  { program: "gcc", debianPackage: "gcc" },
  { file: "/usr/include/stdio.h", debianPackage: "libc6-dev" },
  { program: "zstd", debianPackage: "zstd" },
  { file: "/usr/share/keyrings/debian-archive-keyring.gpg", debianPackage: "debian-archive-keyring" },
];

const listsDir = "/var/lib/apt/lists";
const listsStaleMs = 7 * 24 * 3_600_000;
const aptDeadlineMs = 15 * 60_000;

/** Makes every program of NEEDS and `more` available; answers the installed packages. */
export async function ensureHostPackages(
  progress: Progress,
  more: readonly HostNeed[] = [],
): Promise<readonly string[]> {
  const needs = [...hostNeeds, ...more];
  const missing = await missingPackages(needs);
  if (missing.length === 0) return [];
  const repair = `as root run: apt-get update && apt-get install -y --no-install-recommends ${missing.join(" ")}`;
  return inStep(progress, "Debian packages of the host", repair, async (detail) => {
    if (process.getuid?.() !== 0) throw new Error("installing packages needs root");
    if (await listsAreStale()) {
      detail("apt-get update");
      await aptGet(["update"]);
    }
    detail(`installing ${missing.join(" ")}`);
    try {
      await aptGet(["install", "-y", "--no-install-recommends", ...missing]);
    } catch {
      // Lists younger than a week may still name versions that the mirror has replaced.
      detail("apt-get update, then once more");
      await aptGet(["update"]);
      await aptGet(["install", "-y", "--no-install-recommends", ...missing]);
    }
    const still = await missingPackages(needs);
    if (still.length > 0) throw new Error(`still missing after the installation: ${still.join(" ")}`);
    return missing;
  });
}

async function missingPackages(needs: readonly HostNeed[]): Promise<string[]> {
  const missing = new Set<string>();
  for (const need of needs) {
    const found = need.file ? await exists(need.file) : await onPath(need.program ?? "");
    if (!found) missing.add(need.debianPackage);
  }
  return [...missing];
}

async function onPath(program: string): Promise<boolean> {
  for (const dir of systemPath.split(":")) if (await exists(join(dir, program))) return true;
  return false;
}

async function listsAreStale(): Promise<boolean> {
  const names = await readdir(listsDir).catch(() => []);
  const packages = names.filter((name) => /_Packages/.test(name));
  if (packages.length === 0) return true;
  const times = await Promise.all(packages.map(async (name) => (await stat(join(listsDir, name))).mtimeMs));
  const newestIndex = await stat(listsDir);
  return Date.now() - Math.max(newestIndex.mtimeMs, ...times) > listsStaleMs;
}

function aptGet(args: readonly string[]): Promise<unknown> {
  return run(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", ...args], {
    deadlineMs: aptDeadlineMs,
    env: { DEBIAN_FRONTEND: "noninteractive" },
  });
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
