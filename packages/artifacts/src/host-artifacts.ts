/**
 * Everything that a host builds once for each computer, in the order of a first start. Each artifact is keyed by its inputs, so a
 * second start finds it. A failed step names its repair; the next run continues there.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { obtainRunsc, type Runsc } from "./gvisor/runsc.ts";
import { ensureHostPackages } from "./host-packages.ts";
import { obtainGuard, obtainKeeper, obtainNative } from "./programs/programs.ts";
import { agentClock, type AgentRoot, obtainAgentRoot } from "./rootfs/agent-root.ts";
import { type BaseImage, obtainBaseImage } from "./rootfs/base-image.ts";
import { obtainBaseRootfs } from "./rootfs/base-rootfs.ts";
import { obtainBusybox } from "./rootfs/busybox.ts";
import { sideBySide } from "./store/side-by-side.ts";
import { obtainArtifact, obtainedNames } from "./store/store.ts";
import { takeArtifacts } from "./store/take-artifacts.ts";
import { type ArtifactState, checkArtifacts, updatables, updateArtifacts } from "./update.ts";

const agentProgram = "cloche-guest";

/** Builds the agent's files. The composition root passes it, because this package does not import the agent. */
export interface AgentBuild {
  /** All source files: their content keys the artifact. */
  sources(): Promise<string[]>;
  buildBundle(outFile: string): Promise<unknown>;
  buildProgram(outFile: string): Promise<unknown>;
  buildAddon(name: "clock", outFile: string): Promise<unknown>;
}

export interface BuildOptions {
  readonly cache: string;
  readonly agent: AgentBuild;
  readonly progress: Progress;
}

export interface HostArtifactsOptions extends BuildOptions {
  /** The operator's own runsc, a binary or the folder of a release; empty: built from gVisor's Go module. */
  readonly runsc?: string;
  /** Folder with artifacts built elsewhere, from which missing ones are copied. Default: none. */
  readonly artifacts?: string;
  /** Debian packages are installed if missing. Default true; a pod has only the packages of its image. */
  readonly installPackages?: boolean;
}

export interface HostFiles {
  readonly base: BaseImage;
  /** Path of cloche-sys (native/sys). */
  readonly program: string;
  /** Path of the keeper, the parent of gVisor's processes (native/keeper). */
  readonly keeper: string;
  /** Path of the guard of a cluster's lease (native/guard). */
  readonly guard: string;
  readonly agentRoot: AgentRoot;
}

export type HostArtifacts = HostFiles & { readonly runsc: Runsc };

/** Finds or builds all that a host with gVisor needs in the cache. */
export async function obtainHostArtifacts(options: HostArtifactsOptions): Promise<HostArtifacts> {
  const { cache, agent, progress } = options;
  if (options.artifacts) await takeArtifacts(options.artifacts, cache, progress);
  if (options.installPackages !== false) await ensureHostPackages(progress);
  // Each takes a minute or two at a first start; they are independent.
  const [runsc, files] = await sideBySide(progress, "gVisor and base file system", [
    (report) => obtainRunsc(cache, options.runsc || undefined, report),
    (report) => obtainFiles({ cache, agent, progress: report }),
  ]);
  return { runsc, ...files };
}

/** Answers the names of the folders in the cache that `obtainHostArtifacts` finds or builds. */
export async function buildArtifacts(options: BuildOptions): Promise<string[]> {
  await obtainHostArtifacts(options);
  return obtainedNames();
}

/** Answers which artifacts are older than the Debian mirror's packages (update.ts). */
export async function checkForUpdates(cache: string, progress: Progress): Promise<ArtifactState[]> {
  return checkArtifacts(cache, updatables(cache, projectNode(), progress), progress);
}

/** Rebuilds old artifacts and all that depend on them, so that the next start finds them. */
export async function makeUpdates(options: BuildOptions, states: readonly ArtifactState[]): Promise<void> {
  const { cache, progress } = options;
  await updateArtifacts(cache, updatables(cache, projectNode(), progress), states, progress);
  await obtainFiles(options);
}

const projectNode = () => ({ nodeBinary: process.execPath, nodeVersion: process.version });

/** Everything except gVisor. */
async function obtainFiles({ cache, agent, progress }: BuildOptions): Promise<HostFiles> {
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
        [agentProgram]: join(agentFiles, agentProgram),
        [agentClock]: join(agentFiles, agentClock),
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
            agent.buildProgram(join(dir, agentProgram)),
            agent.buildAddon("clock", join(dir, agentClock)),
          ]);
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return artifact.path;
  });
}
