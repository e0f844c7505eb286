/**
 * `cloche update`: finds artifacts made of Debian packages that are older than the mirror's, and builds them anew. Not used at a start.
 * New artifacts are made beside the old, which sandboxes and this service go on using; the next start uses the new ones.
 */
import { join } from "node:path";
import { inStep, type Progress, rfc3339 } from "@cloche/base";
import { withFileLock } from "@cloche/base/file-lock";
import { type BaseRootfsInputs, baseRootfsRequest, dpkgStatus } from "./rootfs/base-rootfs.ts";
import { busyboxPackages, busyboxRequest } from "./rootfs/busybox.ts";
import { debianSources, installedVersions, type PackageChange, PrivateApt } from "./apt/private-apt.ts";
import { vmArch } from "./vm/vm-arch.ts";
import { vmKernelPackages, vmKernelRequest } from "./vm/vm-kernel.ts";
import {
  currentVersioned,
  rebuildVersioned,
  type VersionedArtifact,
  type VersionedRequest,
} from "./store/versioned.ts";

/** Time to fetch the mirror's lists, 14 MB for all three suites. */
const listsDeadlineMs = 120_000;

/** One artifact that can go out of date. */
export interface Updatable {
  readonly name: string;
  readonly request: VersionedRequest;
  /** Packages of the artifact for which the mirror has newer versions. */
  outdated(apt: PrivateApt, current: VersionedArtifact): Promise<PackageChange[]>;
}

/** As `cloche update --json` prints it. */
export interface ArtifactState {
  readonly name: string;
  /** `missing`: the next start makes it. `old`: packages have newer versions. */
  readonly state: "current" | "old" | "missing";
  /** When it was made; empty: it is missing. */
  readonly made_at: string;
  readonly changes: readonly PackageChange[];
}

export function updatables(cache: string, rootfs: BaseRootfsInputs, progress: Progress): Updatable[] {
  const detailOf = (name: string) => (text: string) => progress(name, text);
  const found: Updatable[] = [
    {
      name: "base file system",
      request: baseRootfsRequest(cache, rootfs, progress, detailOf("base file system")),
      outdated: async (apt, { path }) => {
        const status = join(path, dpkgStatus);
        return apt.outdated(status, Object.keys(await installedVersions(status)));
      },
    },
    {
      name: "busybox",
      request: busyboxRequest(),
      outdated: async (apt, current) => compare(current, await apt.newest(await busyboxPackages())),
    },
  ];
  const arch = machineArch();
  if (arch !== undefined)
    found.push({
      name: "kernel of virtual machines",
      request: vmKernelRequest(cache, arch, detailOf("kernel of virtual machines")),
      outdated: async (apt, current) => compare(current, await apt.newest(await vmKernelPackages(apt, arch))),
    });
  return found;
}

/** Compares with the mirror. Throws a SetupError if it cannot be reached. */
export async function checkArtifacts(
  cache: string,
  all: readonly Updatable[],
  progress: Progress,
  sources?: readonly string[],
): Promise<ArtifactState[]> {
  const repair =
    "check that the Debian mirror of this machine can be reached (apt-get update); what is there goes on working";
  return inStep(progress, "what the Debian mirror has", repair, () =>
    withFileLock(join(cache, ".lock-apt"), async () => {
      const apt = await PrivateApt.open(join(cache, "apt"), sources ?? (await debianSources()));
      await apt.update(listsDeadlineMs);
      const states: ArtifactState[] = [];
      for (const one of all) states.push(await stateOf(cache, one, apt));
      return states;
    }),
  );
}

/** Rebuilds old artifacts. Missing ones are left to the start that needs them. */
export async function updateArtifacts(
  cache: string,
  all: readonly Updatable[],
  states: readonly ArtifactState[],
  progress: Progress,
): Promise<void> {
  const repair =
    "check that the Debian mirror of this machine can be reached (apt-get update); what is there goes on working";
  for (const { name, request } of all) {
    if (states.find((one) => one.name === name)?.state !== "old") continue;
    await inStep(progress, name, repair, () => rebuildVersioned(cache, request, progress));
  }
}

async function stateOf(cache: string, one: Updatable, apt: PrivateApt): Promise<ArtifactState> {
  const current = await currentVersioned(cache, one.request);
  if (current === undefined) return { name: one.name, state: "missing", made_at: "", changes: [] };
  const changes = await one.outdated(apt, current);
  return {
    name: one.name,
    state: changes.length > 0 ? "old" : "current",
    made_at: rfc3339(current.madeFrom.madeAtMs),
    changes: changes.toSorted((a, b) => (a.package < b.package ? -1 : 1)),
  };
}

/** Packages with another version than installed. A package that is no longer used (a kernel of another name) is left out. */
function compare({ madeFrom }: VersionedArtifact, newest: Readonly<Record<string, string>>): PackageChange[] {
  const installed = madeFrom.versions;
  return Object.entries(newest)
    .filter(([name, version]) => installed[name] !== version)
    .map(([name, version]) => ({ package: name, installed: installed[name] ?? "", available: version }));
}

function machineArch() {
  try {
    return vmArch();
  } catch {
    return undefined;
  }
}
