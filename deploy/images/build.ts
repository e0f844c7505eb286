// `sh scripts/node.sh deploy/images/build.ts [--out DIR] [--registry NAME] [--tag TAG]`: the images of this checkout, without a
// container engine, as an OCI layout DIR/oci and the same in one file, DIR/images.tar. Needs root (mmdebstrap); artifacts
// come from CLOCHE_CACHE or are built into it.
//
//   cloche        gateway, edge, operator's commands
//   cloche-host   the same layers, and a host's artifacts
//
// For the architecture that it runs on. Push with `skopeo copy oci:DIR/oci:cloche docker://…`.
import { createReadStream, readdirSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { buildArtifacts } from "@cloche/artifacts";
import { agentBuild } from "../../packages/app/src/agent-build.ts";
import { debianSuite } from "../../packages/artifacts/src/apt/debian-mirror.ts";
import { debianSources } from "../../packages/artifacts/src/apt/private-apt.ts";
import { obtainArtifact } from "../../packages/artifacts/src/store/store.ts";
import { diesWithUs, run } from "../../packages/base/src/commands/run.ts";
import {
  ARTIFACTS_DIR,
  checkout,
  CODE_DIR,
  codeFiles,
  COMMAND,
  DEBIAN_PACKAGES,
  modulePaths,
} from "./contents.ts";
import { DETERMINISTIC_TAR, type Layer, OciLayout } from "./oci-layout.ts";

const DEBIAN_DEADLINE_MS = 15 * 60_000;
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: "amd64", arm64: "arm64" };
const architecture = ARCHITECTURES[process.arch] ?? process.arch;

const { values } = parseArgs({
  options: {
    out: { type: "string", default: "dist/images" },
    registry: { type: "string", default: "docker.io/cloche" },
    tag: { type: "string", default: "dev" },
    cache: { type: "string", default: process.env["CLOCHE_CACHE"] || "/var/lib/cloche/cache" },
  },
});
const say = (step: string, detail?: string): void => console.error(detail ? `${step}: ${detail}` : step);

const out = resolve(values.out);
await mkdir(out, { recursive: true });
const stage = await mkdtemp(join(tmpdir(), "cloche-images-"));
try {
  const artifacts = await buildArtifacts({ cache: values.cache, agent: agentBuild, progress: say });
  const debian = await debianArchive();
  const layout = await OciLayout.open(join(out, "oci"));
  const common = [await layout.layer(createReadStream(debian)), await codeLayer(layout)];
  await writeImage(layout, "cloche", common, []);
  const ofHosts = [...common, await artifactsLayer(layout, artifacts)];
  await writeImage(layout, "cloche-host", ofHosts, [`CLOCHE_ARTIFACTS=/${ARTIFACTS_DIR}`]);
  await layout.close();
  await pack(join(out, "oci"), join(out, "images.tar"));
} finally {
  await rm(stage, { recursive: true, force: true });
}

async function writeImage(layout: OciLayout, name: string, layers: Layer[], env: string[]): Promise<void> {
  const reference = `${values.registry}/${name}:${values.tag}`;
  const manifest = await layout.image(reference, architecture, layers, {
    entrypoint: ["/usr/local/bin/cloche"],
    env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", ...env],
    labels: { "org.opencontainers.image.title": name, "org.opencontainers.image.licenses": "Apache-2.0" },
  });
  const megabytes = Math.round(layers.reduce((sum, { size }) => sum + size, 0) / 1e6);
  console.log(`${reference} ${manifest.digest} ${architecture} ${megabytes} MB`);
}

async function pack(folder: string, file: string): Promise<void> {
  const words = [...DETERMINISTIC_TAR, "--owner=0", "--group=0", "-f", file, "-C", folder, "."];
  await run(["tar", "--create", ...words], { deadlineMs: DEBIAN_DEADLINE_MS });
}

/** Kept in the cache: the same archive until it is removed there, whatever the mirror has. */
async function debianArchive(): Promise<string> {
  const inputs = { suite: debianSuite, packages: DEBIAN_PACKAGES, architecture: process.arch, recipe: 1 };
  const artifact = await obtainArtifact(
    values.cache,
    {
      kind: "image-debian",
      inputs,
      build: async (dir) => {
        const hooks = ["var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*"].map(
          (path) => `--customize-hook=rm -rf "$1"/${path}`,
        );
        const unused = ["doc", "man", "info", "locale"].map(
          (name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`,
        );
        await run(
          [
            ...diesWithUs,
            "mmdebstrap",
            "--variant=minbase",
            "--skip=output/dev",
            `--include=${DEBIAN_PACKAGES.join(",")}`,
            ...unused,
            ...hooks,
            debianSuite,
            join(dir, "root.tar"),
            ...(await debianSources()),
          ],
          {
            env: { SOURCE_DATE_EPOCH: "0" },
            deadlineMs: DEBIAN_DEADLINE_MS,
            onLine: (line) => say("Debian", line),
          },
        );
      },
    },
    say,
  );
  return join(artifact.path, "root.tar");
}

/** Node, the command, the code and the packages that it imports. */
async function codeLayer(layout: OciLayout): Promise<Layer> {
  const bin = join(stage, "usr/local/bin");
  await mkdir(bin, { recursive: true });
  await copyFile(process.execPath, join(bin, "node"));
  await writeFile(join(bin, "cloche"), COMMAND);
  for (const name of ["node", "cloche"]) await chmod(join(bin, name), 0o755);
  const list = join(stage, "code-list");
  await writeFile(list, [...codeFiles(), ...modulePaths()].join("\0"));
  return layout.layerOfTar([
    "--owner=0",
    "--group=0",
    "--mode=a+rX,go-w",
    // Names only: the links to our own packages stay as they are.
    `--transform=flags=rh;s,^\\(package\\|packages\\|native\\|node_modules\\)\\([./]\\),${CODE_DIR}/\\1\\2,`,
    "--no-recursion",
    `--directory=${stage}`,
    "usr/local/bin/cloche",
    "usr/local/bin/node",
    "--recursion",
    `--directory=${checkout}`,
    "--null",
    `--files-from=${list}`,
  ]);
}

/** Of the base file system its list of packages alone: the rest is in the base image and the agent's root, made of it. */
async function artifactsLayer(layout: OciLayout, names: readonly string[]): Promise<Layer> {
  const staged = names.filter((name) => name.startsWith("rootfs-"));
  for (const name of staged) {
    const status = join(name, "fs/var/lib/dpkg/status");
    await mkdir(join(stage, dirname(status)), { recursive: true });
    await copyFile(join(values.cache, status), join(stage, status));
  }
  // Not the folders themselves: who uses an artifact sets its folder's time anew, and tar fails on what changes meanwhile.
  const others = names
    .filter((name) => !staged.includes(name))
    .flatMap((name) => readdirSync(join(values.cache, name)).map((entry) => join(name, entry)))
    .toSorted();
  const isNote = (name: string): boolean => names.some((folder) => name === `${folder}.made-from.json`);
  const notes = readdirSync(values.cache).filter(isNote).toSorted();
  return layout.layerOfTar([
    `--transform=flags=r;s,^,${ARTIFACTS_DIR}/,`,
    `--directory=${stage}`,
    ...staged,
    `--directory=${resolve(values.cache)}`,
    ...others,
    ...notes,
  ]);
}
