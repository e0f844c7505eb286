/**
 * Everything that the host builds once for each computer, in the order of a first start. Each artifact is keyed by its inputs, so a
 * second start finds it. A failed step names its repair; the next run continues there.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { defaults } from "@cloche/protocol";
import { AGENT_CLOCK, type AgentRoot, obtainAgentRoot } from "./artifacts/agent-root.ts";
import { obtainBaseImage } from "./artifacts/base-image.ts";
import { obtainBaseRootfs } from "./artifacts/base-rootfs.ts";
import { obtainBusybox } from "./artifacts/busybox.ts";
import { ensureHostPackages } from "./artifacts/host-packages.ts";
import { obtainGuard, obtainNative } from "./artifacts/native.ts";
import { obtainRunsc, type Runsc } from "./artifacts/runsc.ts";
import { type ArtifactState, checkArtifacts, updatables, updateArtifacts } from "./artifacts/update.ts";
import { sideBySide } from "./artifacts/side-by-side.ts";
import { inStep, type Progress } from "./artifacts/step.ts";
import { obtainArtifact, obtainedNames } from "./artifacts/store.ts";
import { takeArtifacts } from "./artifacts/take-artifacts.ts";
import { openTemplates, type Templates } from "./disk/template.ts";
import { obtainKeeper } from "./drivers/gvisor/keeper.ts";
import { NETNS_DIR } from "./network/names.ts";
import { openPool, type Pool } from "./pool/pool.ts";
import { instanceTag } from "./sys/instance.ts";
import { besideHost, type LaunchPlace, openApartFromPod } from "./sys/launch-place.ts";
import { Native } from "./sys/native.ts";
import { requirePodConditions } from "./sys/pod-conditions.ts";

export { type Pruned, pruneArtifacts } from "./artifacts/prune.ts";
export type { ArtifactState } from "./artifacts/update.ts";
export { stayInUse } from "./artifacts/store.ts";
export { SetupError } from "./artifacts/step.ts";
export { careForPool } from "./pool/pool-care.ts";
export { closePool } from "./pool/pool.ts";
export { mountUsers } from "./sys/mount-users.ts";
export { holdHome } from "./sys/hold-home.ts";

/** Builds the agent's files. The composition root passes it, because the host does not import the agent. */
export interface AgentBuild {
  /** All source files: their content keys the artifact. */
  sources(): Promise<string[]>;
  buildBundle(outFile: string): Promise<unknown>;
  buildProgram(outFile: string): Promise<unknown>;
  buildAddon(name: "clock", outFile: string): Promise<unknown>;
}

export interface HostSetupOptions {
  home: string;
  cache: string;
  /** The operator's own runsc, a binary or the folder of a release; empty: built from gVisor's Go module. */
  runsc: string;
  /** Size in GiB of a pool that has to be made; 0: most of the free space. */
  poolGb: number;
  /** The host is a pod of Kubernetes, which its machines outlive (conditions: sys/pod-conditions.ts). Default false. */
  inPod?: boolean;
  /** Folder with artifacts built elsewhere, from which missing ones are copied. Default: none. */
  artifacts?: string;
  agent: AgentBuild;
  progress: Progress;
}

export interface HostArtifacts {
  runsc: Runsc;
  /** Path of the keeper, the parent of gVisor's processes (drivers/gvisor/keeper.ts). */
  keeper: string;
  /** Path of the guard of a cluster's lease (lease/guard.ts). */
  guard: string;
  agentRoot: AgentRoot;
  pool: Pool;
  templates: Templates;
  native: Native;
}

const CGROUPS = "/sys/fs/cgroup";
const AGENT_PROGRAM = "cloche-guest";

export async function setUpHost(options: HostSetupOptions): Promise<HostArtifacts> {
  const { cache, progress } = options;
  const place = options.inPod ? await outOfPod(options) : besideHost;
  if (options.artifacts) await takeArtifacts(options.artifacts, cache, progress);
  // A pod has only the packages of its image.
  if (!options.inPod) await ensureHostPackages(progress);
  // Each takes a minute or two at a first start; they are independent.
  const [runsc, files] = await sideBySide(progress, "gVisor and base file system", [
    (told) => obtainRunsc(cache, options.runsc || undefined, told),
    (told) => obtainFiles(cache, options.agent, told),
  ]);
  const pool = await openPool({
    home: options.home,
    ...(options.poolGb === 0 ? {} : { sizeBytes: options.poolGb * 1024 ** 3 }),
    place,
    progress,
  });
  const native = new Native(files.program, place);
  const templates = await openTemplates({
    pool,
    native,
    base: files.base,
    sizesMb: [defaults.diskMb],
    progress,
  });
  const { keeper, guard, agentRoot } = files;
  return { runsc, keeper, guard, agentRoot, pool, templates, native };
}

/** Builds everything that `setUpHost` needs in the cache, without a pool. Answers the names of the folders. */
export async function buildArtifacts(
  options: Pick<HostSetupOptions, "cache" | "agent" | "progress">,
): Promise<string[]> {
  const { cache, agent, progress } = options;
  await ensureHostPackages(progress);
  await obtainRunsc(cache, undefined, progress);
  await obtainFiles(cache, agent, progress);
  return obtainedNames();
}

async function outOfPod({ home, cache }: HostSetupOptions): Promise<LaunchPlace> {
  const tag = instanceTag(home);
  await mkdir(cache, { recursive: true, mode: 0o755 });
  await requirePodConditions({
    shared: [home, `/run/cloche-${tag}`, NETNS_DIR],
    same: [cache, CGROUPS, "/dev"],
  });
  return openApartFromPod(tag);
}

/** Answers which artifacts are older than the Debian mirror's packages (artifacts/update.ts). */
export async function checkForUpdates(cache: string, progress: Progress): Promise<ArtifactState[]> {
  return checkArtifacts(cache, updatables(cache, projectNode(), progress), progress);
}

/** Rebuilds old artifacts and all that depend on them, so that the next start finds them. */
export async function makeUpdates(
  options: Pick<HostSetupOptions, "cache" | "agent" | "progress">,
  states: readonly ArtifactState[],
): Promise<void> {
  const { cache, agent, progress } = options;
  await updateArtifacts(cache, updatables(cache, projectNode(), progress), states, progress);
  await obtainFiles(cache, agent, progress);
}

const projectNode = () => ({ nodeBinary: process.execPath, nodeVersion: process.version });

/** Obtains everything except gVisor: the base image, the host's programs, the agent's root. */
async function obtainFiles(cache: string, agent: AgentBuild, progress: Progress) {
  const rootfs = await obtainBaseRootfs(cache, projectNode(), progress);
  const base = await obtainBaseImage(cache, rootfs, progress);
  const program = await obtainNative(cache, progress);
  const keeper = await obtainKeeper(cache, progress);
  const guard = await obtainGuard(cache, progress);
  const agentFiles = await obtainAgentFiles(cache, agent, progress);
  const agentRoot = await obtainAgentRoot(
    cache,
    {
      rootfs,
      nodeVersion: process.version,
      busybox: await obtainBusybox(cache, progress),
      bundle: join(agentFiles, "agent.cjs"),
      programs: {
        [AGENT_PROGRAM]: join(agentFiles, AGENT_PROGRAM),
        [AGENT_CLOCK]: join(agentFiles, AGENT_CLOCK),
      },
    },
    progress,
  );
  return { base, program, keeper, guard, agentRoot };
}

/** The agent's bundle, native program and addon, compiled again only when a source changed. */
function obtainAgentFiles(cache: string, agent: AgentBuild, progress: Progress): Promise<string> {
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, "agent", repair, async (detail) => {
    const sources = await agent.sources();
    const texts = await Promise.all(sources.map((path) => readFile(path, "utf8")));
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "agent",
        inputs: { texts, architecture: process.arch },
        build: async (dir) => {
          detail("compiling");
          await Promise.all([
            agent.buildBundle(join(dir, "agent.cjs")),
            agent.buildProgram(join(dir, AGENT_PROGRAM)),
            agent.buildAddon("clock", join(dir, AGENT_CLOCK)),
          ]);
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return artifact.path;
  });
}
