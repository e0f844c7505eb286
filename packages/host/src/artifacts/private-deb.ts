// Fetches a Debian package and unpacks it into a directory without touching the machine: apt with its own sources and
// lists verifies the archive's signature and the package's hash; nothing is installed and no apt source is added.
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../sys/run.ts";
import { DEBIAN_KEYRING } from "./debian-mirror.ts";

const FETCH_DEADLINE_MS = 10 * 60_000;

export interface PrivateDeb {
  readonly mirror: string;
  readonly suite: string;
  readonly packages: readonly string[];
  /** Take what these metapackages depend on instead of themselves: the present kernel, whatever its version. */
  readonly dependenciesOnly?: boolean;
  /** The files of the packages are laid out below it. */
  readonly into: string;
}

export async function unpackPrivateDebs(request: PrivateDeb): Promise<void> {
  const apt = join(request.into, ".apt");
  await mkdir(join(apt, "lists/partial"), { recursive: true });
  await mkdir(join(apt, "archives/partial"), { recursive: true });
  const sources = join(apt, "sources.list");
  await writeFile(sources, `deb [signed-by=${DEBIAN_KEYRING}] ${request.mirror} ${request.suite} main\n`);
  const options = [
    `Dir::Etc::sourcelist=${sources}`,
    "Dir::Etc::sourceparts=/dev/null",
    "Dir::Etc::preferencesparts=/dev/null",
    `Dir::State::lists=${join(apt, "lists")}`,
    `Dir::Cache=${apt}`,
    "Acquire::Languages=none",
    "Acquire::Retries=3",
    // The cache may lie below a 0700 home, which apt's own download user cannot enter.
    "APT::Sandbox::User=root",
  ].flatMap((option) => ["-o", option]);
  await run(["apt-get", "-q", ...options, "update"], { deadlineMs: FETCH_DEADLINE_MS });
  const packages = request.dependenciesOnly
    ? await dependenciesOf(options, request.packages)
    : request.packages;
  await run(["apt-get", "-q", ...options, "download", ...packages], {
    cwd: apt,
    deadlineMs: FETCH_DEADLINE_MS,
  });
  const debs = (await readdir(apt)).filter((name) => name.endsWith(".deb"));
  if (debs.length !== packages.length)
    throw new Error(`apt downloaded ${debs.length} of ${packages.length} packages`);
  for (const deb of debs) await run(["dpkg-deb", "-x", join(apt, deb), request.into]);
  await rm(apt, { recursive: true, force: true });
}

async function dependenciesOf(
  options: readonly string[],
  metapackages: readonly string[],
): Promise<string[]> {
  const { stdout } = await run(["apt-cache", ...options, "depends", "--important", ...metapackages]);
  const found = [...stdout.matchAll(/^\s+Depends: ([a-z0-9][a-z0-9+.-]+)$/gm)].map((match) => match[1] ?? "");
  if (found.length === 0) throw new Error(`${metapackages.join(", ")} depends on nothing in this suite`);
  return found;
}
