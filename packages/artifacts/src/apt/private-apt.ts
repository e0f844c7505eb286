/**
 * apt with its own sources and lists. Verifies the archive's signature and the packages' hashes. Installs nothing, and neither adds nor
 * changes a source of the computer.
 */
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@cloche/base/run";
import { debianKeyring, debianSuite, debianMirrors } from "./debian-mirror.ts";

const fetchDeadlineMs = 10 * 60_000;
/** Timeout of one connection, so that a mirror that does not answer is reported soon. */
const acquireTimeoutS = 20;

/** Versions by package. */
export type Versions = Readonly<Record<string, string>>;

export interface PackageChange {
  readonly package: string;
  readonly installed: string;
  readonly available: string;
}

/** Lines of a sources.list: Debian's stable suite with updates and security fixes, from this computer's mirrors. */
export async function debianSources(): Promise<string[]> {
  const { main, security } = await debianMirrors();
  return [
    [main, debianSuite],
    [main, `${debianSuite}-updates`],
    [security, `${debianSuite}-security`],
  ].map(([uri = "", suite = ""]) => debianSource(uri, suite));
}

export const debianSource = (uri: string, suite: string): string =>
  `deb [signed-by=${debianKeyring}] ${uri} ${suite} main`;

export class PrivateApt {
  readonly #dir: string;
  readonly #options: readonly string[];

  private constructor(dir: string) {
    this.#dir = dir;
    this.#options = [
      `Dir::Etc::sourcelist=${join(dir, "sources.list")}`,
      "Dir::Etc::sourceparts=/dev/null",
      "Dir::Etc::preferences=/dev/null",
      "Dir::Etc::preferencesparts=/dev/null",
      `Dir::State=${dir}`,
      `Dir::State::lists=${join(dir, "lists")}`,
      `Dir::Cache=${dir}`,
      "Acquire::Languages=none",
      "Acquire::Retries=3",
      `Acquire::http::Timeout=${acquireTimeoutS}`,
      `Acquire::https::Timeout=${acquireTimeoutS}`,
      // The cache may be below a 0700 home, which apt's own download user cannot enter.
      "APT::Sandbox::User=root",
    ].flatMap((option) => ["-o", option]);
  }

  /** `dir` keeps the lists: a second update fetches only what changed. */
  static async open(dir: string, sources: readonly string[]): Promise<PrivateApt> {
    await mkdir(join(dir, "lists/partial"), { recursive: true });
    await mkdir(join(dir, "archives/partial"), { recursive: true });
    await writeFile(join(dir, "sources.list"), `${sources.join("\n")}\n`);
    await writeFile(join(dir, "nothing-installed"), "");
    return new PrivateApt(dir);
  }

  /** Fetches the lists. Throws when one of them cannot be fetched. */
  async update(deadlineMs = fetchDeadlineMs): Promise<void> {
    const strict = ["-o", "APT::Update::Error-Mode=any"];
    await run(["apt-get", "-q", ...this.#options, ...strict, "update"], { deadlineMs });
  }

  /** The newest versions of packages; throws if the suite lacks one. */
  async newest(packages: readonly string[]): Promise<Versions> {
    const found = await this.#policy(packages, join(this.#dir, "nothing-installed"));
    const versions = packages.map((name) => {
      const available = found.find((one) => one.package === name)?.available;
      if (available === undefined) throw new Error(`the Debian mirror has no package ${name}`);
      return [name, available];
    });
    return Object.fromEntries(versions);
  }

  /** Which of the packages that a dpkg status file names have a newer version. */
  async outdated(statusFile: string, packages: readonly string[]): Promise<PackageChange[]> {
    const found = await this.#policy(packages, statusFile);
    return found.filter(({ installed, available }) => installed !== "" && installed !== available);
  }

  /** The packages that metapackages depend on, such as the present kernel. */
  async dependencies(metapackages: readonly string[]): Promise<string[]> {
    const command = ["apt-cache", ...this.#options, "depends", "--important", ...metapackages] as const;
    const { stdout } = await run([...command]);
    const found = [...stdout.matchAll(/^\s+Depends: ([a-z0-9][a-z0-9+.-]+)$/gm)].map(
      (match) => match[1] ?? "",
    );
    if (found.length === 0) throw new Error(`${metapackages.join(", ")} depends on nothing in this suite`);
    return found;
  }

  /** Downloads the packages and unpacks them below `into`. Answers their versions. */
  async unpack(packages: readonly string[], into: string): Promise<Versions> {
    const folder = join(this.#dir, "debs");
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder);
    await run(["apt-get", "-q", ...this.#options, "download", ...packages], {
      cwd: folder,
      deadlineMs: fetchDeadlineMs,
    });
    const debs = (await readdir(folder)).filter((name) => name.endsWith(".deb"));
    if (debs.length !== packages.length)
      throw new Error(`apt downloaded ${debs.length} of ${packages.length} packages`);
    const versions: Record<string, string> = {};
    for (const name of debs) {
      const deb = join(folder, name);
      const { stdout } = await run(["dpkg-deb", "--show", "--showformat=${Package} ${Version}", deb]);
      const [packageName = "", version = ""] = stdout.trim().split(" ");
      versions[packageName] = version;
      await run(["dpkg-deb", "-x", deb, into]);
    }
    await rm(folder, { recursive: true });
    return versions;
  }

  async #policy(packages: readonly string[], statusFile: string): Promise<PackageChange[]> {
    const status = ["-o", `Dir::State::status=${statusFile}`];
    const { stdout } = await run(["apt-cache", ...this.#options, ...status, "policy", ...packages]);
    const version = (text: string | undefined): string =>
      text === undefined || text === "(none)" ? "" : text;
    return [...stdout.matchAll(/^(\S+):\n {2}Installed: (.+)\n {2}Candidate: (.+)$/gm)]
      .map(([, name = "", installed, candidate]) => ({
        package: name,
        installed: version(installed),
        available: version(candidate),
      }))
      .filter(({ available }) => available !== "");
  }
}

/** Installed packages and versions, from a dpkg status file. */
export async function installedVersions(statusFile: string): Promise<Versions> {
  const versions: Record<string, string> = {};
  for (const stanza of (await readFile(statusFile, "utf8")).split("\n\n")) {
    const field = (name: string): string => new RegExp(`^${name}: (.+)$`, "m").exec(stanza)?.[1] ?? "";
    if (field("Status") === "install ok installed") versions[field("Package")] = field("Version");
  }
  return versions;
}
