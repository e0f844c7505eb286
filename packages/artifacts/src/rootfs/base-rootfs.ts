/**
 * The root file system that sandboxes start from: Debian with what people expect in a machine, Node 24 and npm.
 * Laid out as it will lie on the disk: `fs/` is the user's root, `cloche/` (0700, empty) the agent's own data.
 */
import { chmod, copyFile, mkdir, rm, symlink } from "node:fs/promises";
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { diesWithUs, run } from "@cloche/base/run";
import {
  addUser,
  lightenLoginShells,
  removeHostKeys,
  sandboxResolver,
  writeSettings,
} from "./base-settings.ts";
import { debianKeyring, debianSuite, debianMirrors } from "../apt/debian-mirror.ts";
import { installedVersions } from "../apt/private-apt.ts";
import { type Artifact, obtainArtifact } from "../store/store.ts";
import { ageText, obtainVersioned, type VersionedRequest } from "../store/versioned.ts";

/** Raise when the recipe below changes in a way that its inputs do not show. */
const recipeVersion = 5;

/** Below an artifact of this kind: what is installed in it. */
export const dpkgStatus = "fs/var/lib/dpkg/status";

const packageNames = [
  // languages and version control
  "python3 python-is-python3 python3-pip python3-venv git openssh-client",
  // fetching and unpacking
  "curl wget ca-certificates xz-utils zstd bzip2 unzip zip rsync",
  // looking around
  "procps psmisc iproute2 iputils-ping netbase less file tree jq sqlite3 nano vim-tiny bash-completion tzdata",
  // other users
  "sudo",
  // its server is started by nobody but `cloche ssh`, for one connection
  "openssh-server openssh-sftp-server",
  // services in OCI containers
  "crun",
].flatMap((line) => line.split(" "));

const npmPath = {
  version: "11.19.1",
  integrity:
    "sha512-ztsxKxt/kkIaAs+2i0GU6I+DRmUdrNasxTZKJe9TCdSjKxlhah/4r/hl5ygMD6XAg1qZ9c2TNomR4qgOydp10g==",
};

const repair =
  "check that the Debian mirror and the npm registry can be reached from this machine (apt-get update; npm view npm version) and run the command again";
const buildDeadlineMs = 20 * 60_000;

export interface BaseRootfsInputs {
  /** The Node binary to put into sandboxes: the project's own. */
  readonly nodeBinary: string;
  /** For example "v24.21.0". */
  readonly nodeVersion: string;
}

/** Answers the directory that holds `fs/` and `cloche/`. About 30 s when it has to be built. */
export function obtainBaseRootfs(
  cache: string,
  inputs: BaseRootfsInputs,
  progress: Progress,
): Promise<Artifact> {
  return inStep(progress, "base file system (Debian)", repair, async (detail) => {
    const request = baseRootfsRequest(cache, inputs, progress, detail);
    const found = await obtainVersioned(cache, request, (_step, text) => detail(text ?? ""));
    const age = ageText(found, Date.now());
    if (age !== undefined) detail(age);
    return found;
  });
}

export function baseRootfsRequest(
  cache: string,
  inputs: BaseRootfsInputs,
  progress: Progress,
  detail: (text: string) => void,
): VersionedRequest {
  return {
    kind: "rootfs",
    inputs: {
      recipe: recipeVersion,
      suite: debianSuite,
      architecture: process.arch,
      packages: packageNames,
      node: inputs.nodeVersion,
      npm: npmPath,
      resolver: sandboxResolver,
    },
    build: async (dir) => {
      const root = join(dir, "fs");
      const npm = await obtainNpm(cache, progress);
      await bootstrap(root, detail);
      detail("adding Node and npm");
      await addNode(root, inputs.nodeBinary);
      await addNpm(root, npm);
      await archiveLocale(root);
      await writeSettings(root);
      await lightenLoginShells(root);
      await addUser(root);
      await removeHostKeys(root);
      await mkdir(join(dir, "cloche"), { mode: 0o700 });
      return installedVersions(join(dir, dpkgStatus));
    },
  };
}

async function bootstrap(root: string, detail: (text: string) => void): Promise<void> {
  const mirrors = await debianMirrors();
  await run(
    [
      ...diesWithUs,
      "mmdebstrap",
      "--variant=minbase",
      `--include=${packageNames.join(",")}`,
      ...(await proxyOptions()),
      debianSuite,
      root,
      source(mirrors.main, debianSuite),
      source(mirrors.main, `${debianSuite}-updates`),
      source(mirrors.security, `${debianSuite}-security`),
    ],
    {
      deadlineMs: buildDeadlineMs,
      onLine: (line) => {
        if (line.startsWith("I: ")) detail(line.slice(3));
      },
    },
  );
}

const source = (uri: string, suite: string) => `deb [signed-by=${debianKeyring}] ${uri} ${suite} main`;

/** mmdebstrap writes its own apt configuration, so the computer's proxy is passed on. */
async function proxyOptions(): Promise<string[]> {
  const { stdout } = await run(["apt-config", "dump", "Acquire::http::Proxy", "Acquire::https::Proxy"]);
  return stdout
    .split("\n")
    .filter((line) => /Proxy "[^"]+";$/.test(line))
    .map((line) => `--aptopt=${line}`);
}

async function addNode(root: string, nodeBinary: string): Promise<void> {
  const target = join(root, "usr/local/bin/node");
  await copyFile(nodeBinary, target);
  await chmod(target, 0o755);
  // Node's C++ libraries come with minbase; if a later Debian leaves them out, this fails the build.
  const { stdout } = await run(["chroot", root, "/usr/local/bin/node", "--version"]);
  if (!stdout.startsWith("v")) throw new Error("Node does not start in the base file system");
}

async function addNpm(root: string, npm: Artifact): Promise<void> {
  const target = join(root, "usr/local/lib/node_modules");
  await mkdir(target, { recursive: true });
  await run(["cp", "-a", join(npm.path, "npm"), target]);
  for (const program of ["npm", "npx"]) {
    const script = `../lib/node_modules/npm/bin/${program}-cli.js`;
    await chmod(join(root, "usr/local/bin", script), 0o755);
    await symlink(script, join(root, "usr/local/bin", program));
  }
}

/** Fetched before the long steps, so that an unreachable registry fails within seconds. */
function obtainNpm(cache: string, progress: Progress): Promise<Artifact> {
  return obtainArtifact(
    cache,
    {
      kind: "npm",
      inputs: npmPath,
      build: async (dir) => {
        const argv = ["npm", "pack", "--json", "--pack-destination", dir, `npm@${npmPath.version}`] as const;
        const { stdout } = await run([...argv], { cwd: dir, deadlineMs: 5 * 60_000 });
        const packed = (JSON.parse(stdout) as { filename: string; integrity: string }[])[0];
        if (packed?.integrity !== npmPath.integrity)
          throw new Error(
            `npm ${npmPath.version} of the registry has integrity ${packed?.integrity}, not the pinned one`,
          );
        const archive = join(dir, packed.filename);
        await mkdir(join(dir, "npm"));
        await run([
          "tar",
          "-xzf",
          archive,
          "--no-same-owner",
          "--strip-components=1",
          "-C",
          join(dir, "npm"),
        ]);
        await rm(archive);
      },
    },
    progress,
  );
}

/**
 * Programs with translations (all of coreutils) open a file for each category of their locale, under two spellings: 65 of the 106
 * system calls of an `echo`. A locale archive is one file for all categories.
 */
async function archiveLocale(root: string): Promise<void> {
  await run(["chroot", root, "localedef", "--add-to-archive", "/usr/lib/locale/C.utf8"]);
}
