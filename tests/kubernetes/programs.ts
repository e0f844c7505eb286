// The programs of a Kubernetes node. Debian's: runc, which has the seccomp filters that pods ask for, and the CNI plug-ins. All
// others are built from their Go modules (the checksum database answers for them), once: 10 to 20 minutes on two processors, 8 GB
// meanwhile, 0.7 GB after. CLOCHE_KUBERNETES_PROGRAMS names a folder that has these already.
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { obtainGo, packageCounter } from "../../packages/artifacts/src/gvisor/go-tools.ts";
import { unpackPrivateDebs } from "../../packages/artifacts/src/apt/private-deb.ts";
import { inStep, type Progress } from "../../packages/base/src/setup-step.ts";
import { obtainArtifact } from "../../packages/artifacts/src/store/store.ts";
import { run } from "../../packages/base/src/commands/run.ts";

const TOOLCHAIN = "go1.26.8";
const KUBERNETES = "1.37.2";
const KUBERNETES_PROGRAMS = [
  "kube-apiserver",
  "kube-controller-manager",
  "kube-scheduler",
  "kube-proxy",
  "kubelet",
];
const RUNTIME = [
  { module: "go.etcd.io/etcd/server/v3", version: "v3.7.0", programs: { etcd: "" } },
  {
    module: "github.com/containerd/containerd/v2",
    version: "v2.4.2",
    programs: {
      containerd: "/cmd/containerd",
      ctr: "/cmd/ctr",
      "containerd-shim-runc-v2": "/cmd/containerd-shim-runc-v2",
    },
    tags: "no_btrfs no_zfs no_devmapper",
  },
] as const;
/** The first of Kubernetes' programs has 1,700 packages to compile, and the computer may do much else. */
const COMPILE_DEADLINE_MS = 60 * 60_000;
const REPAIR =
  "check that the Go module proxy can be reached (curl -I https://proxy.golang.org), that gcc is there, and run the command again";

export interface NodePrograms {
  /** They hold etcd, Kubernetes' programs, containerd and runc; the first that has one counts. */
  readonly folders: readonly string[];
  /** Holds Debian's CNI plug-ins. */
  readonly cni: string;
}

export async function obtainNodePrograms(cache: string, progress: Progress): Promise<NodePrograms> {
  const debian = await obtainArtifact(
    cache,
    {
      kind: "kubernetes-debian",
      inputs: { recipe: 1, architecture: process.arch },
      build: async (into) =>
        void (await unpackPrivateDebs({ packages: ["containernetworking-plugins", "runc"], into })),
    },
    progress,
  );
  const given = process.env["CLOCHE_KUBERNETES_PROGRAMS"];
  const own = given || (await built(cache, progress));
  return { folders: [join(debian.path, "usr/sbin"), own], cni: join(debian.path, "usr/lib/cni") };
}

function built(cache: string, progress: Progress): Promise<string> {
  return inStep(progress, "programs of a Kubernetes node", REPAIR, async (detail) => {
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "kubernetes-node",
        inputs: { KUBERNETES, KUBERNETES_PROGRAMS, RUNTIME, TOOLCHAIN, architecture: process.arch },
        build: (into) => build(into, detail),
      },
      (_step, text) => detail(text ?? ""),
    );
    return artifact.path;
  });
}

async function build(into: string, detail: (text: string) => void): Promise<void> {
  const work = join(into, "work");
  await mkdir(work);
  const go = await obtainGo({ toolchain: TOOLCHAIN, work, deadlineMs: COMPILE_DEADLINE_MS, detail });
  const compile = async (folder: string, name: string, path: string, words: readonly string[] = []) => {
    detail(`compiling ${name}`);
    const onLine = packageCounter((text) => detail(`${name}: ${text}`));
    const flags = ["-v", "-trimpath", "-mod=mod", "-buildvcs=false", ...words];
    await go.run(["build", ...flags, "-o", join(into, name), path], { cwd: folder, onLine });
  };
  const kubernetes = join(work, "kubernetes");
  await mkdir(kubernetes);
  await ownMainModule(kubernetes, (words) => go.run(words, { cwd: kubernetes }).then(({ stdout }) => stdout));
  for (const name of KUBERNETES_PROGRAMS)
    await compile(kubernetes, name, `k8s.io/kubernetes/cmd/${name}`, ["-ldflags", versionFlags()]);
  for (const one of RUNTIME) {
    const folder = join(work, one.module.replaceAll("/", "-"));
    await mkdir(folder);
    await writeFile(join(folder, "go.mod"), "module cloche.test/node\ngo 1.26.0\n");
    const tags = "tags" in one ? ["-tags", one.tags] : [];
    for (const [name, below] of Object.entries(one.programs)) {
      await go.run(["get", `${one.module}${below}@${one.version}`], { cwd: folder });
      await compile(folder, name, `${one.module}${below}`, [...tags, "-ldflags", "-s -w"]);
    }
  }
  await rm(work, { recursive: true });
}

/** Kubernetes is no module to depend on: its requirements as our own, its staging folders replaced by what is published. */
async function ownMainModule(
  folder: string,
  go: (words: readonly string[]) => Promise<string>,
): Promise<void> {
  const wanted = `k8s.io/kubernetes@v${KUBERNETES}`;
  await writeFile(join(folder, "go.mod"), "module cloche.test/kubernetes\n");
  await go(["mod", "download", wanted]);
  const { Dir: source } = JSON.parse(await go(["mod", "download", "-json", wanted])) as { Dir: string };
  const published = `v0.${KUBERNETES.replace(/^1\./, "")}`;
  const text = (await readFile(join(source, "go.mod"), "utf8"))
    .replace(/^module .*/m, "module cloche.test/kubernetes")
    .replaceAll(/^(\s*k8s\.io\/[a-z-]+ )v0\.0\.0(?=\s|$)/gm, `$1${published}`)
    .replaceAll(/=> \.\/staging\/src\/(k8s\.io\/[a-z-]+)/g, `=> $1 ${published}`);
  await writeFile(join(folder, "go.mod"), `${text}\nrequire k8s.io/kubernetes v${KUBERNETES}\n`);
  await writeFile(join(folder, "go.sum"), await readFile(join(source, "go.sum")));
}

function versionFlags(): string {
  const [major, minor] = KUBERNETES.split(".");
  const of = (path: string, values: Record<string, string>): string[] =>
    Object.entries(values).map(([name, value]) => `-X ${path}.${name}=${value}`);
  return [
    "-s -w",
    ...of("k8s.io/component-base/version", {
      gitVersion: `v${KUBERNETES}`,
      gitMajor: major ?? "",
      gitMinor: minor ?? "",
    }),
    ...of("k8s.io/client-go/pkg/version", { gitVersion: `v${KUBERNETES}` }),
  ].join(" ");
}

/** The image of the process that holds a pod's namespaces, for `ctr images import`. */
export async function buildPause(source: string, into: string): Promise<void> {
  await mkdir(into, { recursive: true });
  await run(["gcc", "-static", "-O2", "-o", join(into, "pause"), source]);
}
