/**
 * Everything the host builds once per machine, in the order a newcomer sees it. Each artifact is keyed by what goes into
 * it, so a second start only looks; a failed step names its repair, and running again goes on where it stopped.
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
export { holdHome } from "./sys/hold-home.ts";

/** How the agent's files are made; the composition root passes it, since the host does not import the agent. */
export interface AgentBuild {
  /** Files whose content decides the result. */
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
  /** GiB of a pool that must be made; 0: most of the free space. */
  poolGb: number;
  /** The host is a pod of Kubernetes, which its machines outlive (sys/pod-conditions.ts says what it must have). Default false. */
  inPod?: boolean;
  /** Folder with artifacts that were built elsewhere: what the cache lacks is copied from there. Default: none. */
  artifacts?: string;
  agent: AgentBuild;
  progress: Progress;
}

export interface HostArtifacts {
  runsc: Runsc;
  /** Path of the program that keeps gVisor's processes (drivers/gvisor/keeper.ts). */
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
  // What an image comes with is all that there is in a pod.
  if (!options.inPod) await ensureHostPackages(progress);
  // Either takes a minute or two of a first start, and neither needs the other.
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

/** Everything that `setUpHost` needs in the cache, without a pool. Answers the names of its folders. */
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

/** What of the artifacts is old by what the Debian mirror has now (artifacts/update.ts). */
export async function checkForUpdates(cache: string, progress: Progress): Promise<ArtifactState[]> {
  return checkArtifacts(cache, updatables(cache, projectNode(), progress), progress);
}

/** Makes what is old anew, with all that is made of it: the next start only takes it. */
export async function makeUpdates(
  options: Pick<HostSetupOptions, "cache" | "agent" | "progress">,
  states: readonly ArtifactState[],
): Promise<void> {
  const { cache, agent, progress } = options;
  await updateArtifacts(cache, updatables(cache, projectNode(), progress), states, progress);
  await obtainFiles(cache, agent, progress);
}

const projectNode = () => ({ nodeBinary: process.execPath, nodeVersion: process.version });

/** What does not come from gVisor: the base image, the host's programs, the agent's root. */
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
