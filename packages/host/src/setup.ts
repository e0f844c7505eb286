/** What a host needs on its computer before it starts: artifacts (@cloche/artifacts), its pool, the disk templates in it. */
import { mkdir } from "node:fs/promises";
import { type HostArtifacts, type HostArtifactsOptions, obtainHostArtifacts } from "@cloche/artifacts";
import { defaults } from "@cloche/protocol";
import { openTemplates, type Templates } from "./disk/template.ts";
import { netnsDir } from "./network/names.ts";
import { openPool, type Pool } from "./pool/pool.ts";
import { instanceTag } from "./sys/instance.ts";
import { besideHost, type LaunchPlace, openApartFromPod } from "./sys/launch-place.ts";
import { Native } from "./sys/native.ts";
import { requirePodConditions } from "./sys/pod-conditions.ts";

export { careForPool } from "./pool/pool-care.ts";
export { closePool } from "./pool/pool.ts";
export { mountUsers } from "./sys/mount-users.ts";
export { holdHome } from "./sys/hold-home.ts";

export interface HostSetupOptions extends Omit<HostArtifactsOptions, "installPackages"> {
  readonly home: string;
  /** Size in GiB of a pool that has to be made; 0: most of the free space. */
  readonly poolGb: number;
  /** The host is a pod of Kubernetes, which its machines outlive (conditions: sys/pod-conditions.ts). Default false. */
  readonly inPod?: boolean;
}

export interface HostSetup extends Omit<HostArtifacts, "base" | "program"> {
  readonly pool: Pool;
  readonly templates: Templates;
  readonly native: Native;
}

const cgroups = "/sys/fs/cgroup";

export async function setUpHost(options: HostSetupOptions): Promise<HostSetup> {
  const { progress } = options;
  const place = options.inPod ? await outOfPod(options) : besideHost;
  const { base, program, ...artifacts } = await obtainHostArtifacts({
    ...options,
    installPackages: !options.inPod,
  });
  const pool = await openPool({
    home: options.home,
    ...(options.poolGb === 0 ? {} : { sizeBytes: options.poolGb * 1024 ** 3 }),
    place,
    progress,
  });
  const native = new Native(program, place);
  const templates = await openTemplates({ pool, native, base, sizesMb: [defaults.diskMb], progress });
  return { ...artifacts, pool, templates, native };
}

async function outOfPod({ home, cache }: HostSetupOptions): Promise<LaunchPlace> {
  const tag = instanceTag(home);
  await mkdir(cache, { recursive: true, mode: 0o755 });
  await requirePodConditions({
    shared: [home, `/run/cloche-${tag}`, netnsDir],
    same: [cache, cgroups, "/dev"],
  });
  return openApartFromPod(tag);
}
