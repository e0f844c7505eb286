/** Starts the host of this computer with its artifacts, pool, network and drivers, for `up` and for the role `host`. */
import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Pruned, pruneArtifacts, sandboxResolver, stayInUse } from "@cloche/artifacts";
import {
  boundedLog,
  type Config,
  type Log,
  type Metrics,
  removeEmptyFolder,
  systemClock,
} from "@cloche/base";
import {
  type ClusterParts,
  createHost,
  destroyNetwork,
  type Host,
  type HostParts,
  instanceTag,
  type Network,
  openNetwork,
  type Runtime,
} from "@cloche/host";
import { careForPool, closePool, type HostSetup, mountUsers, setUpHost } from "@cloche/host/setup";
import { agentBuild } from "../agent-build.ts";
import { makeDrivers } from "../drivers.ts";
import type { GvisorStatus } from "../gvisor-age.ts";
import type { ProgressPrinter } from "../progress.ts";
import type { Stops, WaitsFor } from "./stops.ts";

export interface MachinesNeeds {
  config: Config;
  log: Log;
  metrics: Metrics;
  progress: ProgressPrinter;
  stops: Stops;
  /** Parts of the host that do not come from this computer. */
  host: Pick<HostParts, "blobs"> & Partial<HostParts>;
  /** Makes the parts of a host in a cluster; undefined on a single machine. */
  cluster?(own: Pick<HostSetup, "guard" | "native"> & { runDir: string; tag: string }): ClusterParts;
  /** Called with the host before it starts. */
  made?(host: Host): Promise<void>;
}

export interface LocalMachines {
  host: Host;
  /** The first is the default. */
  runtimes: readonly Runtime[];
  emulated: boolean;
  gvisor: GvisorStatus;
  subnet: string;
  /** Removes artifacts that neither this service nor any record of a machine needs. */
  pruneCache(): Promise<Pruned>;
}

/** Whether machines of an earlier start may exist. */
export const hasRunBefore = (home: string): boolean => existsSync(networkState(instanceTag(home)));

/** Starts the host, which adopts running machines. */
export async function startMachines(needs: MachinesNeeds): Promise<LocalMachines> {
  const { config, log, metrics, progress, stops } = needs;
  const tag = instanceTag(config.home);
  const artifacts = await openArtifacts(needs);
  const { native, pool, runsc } = artifacts;
  const runDir = `/run/cloche-${tag}`;
  const network = await startNetwork(needs, tag, runDir, artifacts);
  progress.step("machines");
  const { drivers, emulated } = await makeDrivers({ config, artifacts, tag, network, progress, log });
  const host = createHost({
    poolDir: pool.dir,
    runDir,
    drivers,
    templates: artifacts.templates,
    native,
    dnsServers: [sandboxResolver],
    egress: network,
    checkpointLimits: { count: config.maxCheckpoints, bytes: config.maxCheckpointGb * 1024 ** 3 },
    clock: systemClock,
    log: log.child({ part: "host" }),
    metrics,
    dozeSeconds: config.dozeSeconds,
    traceOperations: config.trace === "operations",
    randomBytes,
    ...(needs.cluster && { cluster: needs.cluster({ ...artifacts, runDir, tag }) }),
    ...needs.host,
  });
  stops.add(
    "host",
    () => host.stop({ suspend: stops.suspend }),
    () => [host.stopWaitsFor(), native.underWay()].filter((text) => text !== "").join("; "),
  );
  await needs.made?.(host);
  await host.start();
  // Not before recovery: a machine that is not recovered yet may own these resources.
  void host.recovered
    .then(() => network.reclaim())
    .catch((error: unknown) => log.warn({ err: error }, "unowned network not released"));
  const released = runsc.released?.toISOString().slice(0, 10);
  return {
    host,
    runtimes: [...drivers.keys()],
    emulated,
    gvisor: { version: runsc.version, ...(released !== undefined && { released }) },
    subnet: network.subnet,
    async pruneCache() {
      // Running machines of all services on this computer, and suspended ones of this service.
      const records = [join(pool.dir, "machines"), ...(await runningUnits())];
      const pruned = await pruneArtifacts({ cache: config.cache, records, nowMs: systemClock.nowMs() });
      log.info({ ...pruned }, "unused artifacts removed");
      return pruned;
    },
  };
}

async function openArtifacts({ config, log, progress, stops }: MachinesNeeds): Promise<HostSetup> {
  const artifacts = await setUpHost({
    home: config.home,
    cache: config.cache,
    runsc: config.runsc,
    poolGb: config.poolGb,
    inPod: config.hostInPod,
    artifacts: config.artifacts,
    agent: agentBuild,
    progress: (step, detail) => progress.step(step, detail),
  });
  const endUse = stayInUse();
  stops.add("artifacts", async () => endUse());
  const endPoolCare = careForPool(artifacts.pool, artifacts.native, (error) =>
    log.warn({ err: error }, "giving back free space of the pool"),
  );
  const { pool, native } = artifacts;
  let waitsFor: WaitsFor = () => "free space that is being given back";
  const closing = async (): Promise<void> => {
    await endPoolCare();
    waitsFor = () => `the end of cloche-sys (process ${native.pids.join(", ")})`;
    await native.close();
    waitsFor = async () => `the unmount of ${pool.dir}; users: ${(await mountUsers(pool.dir)).join("; ")}`;
    if (stops.suspend) await closePool(config.home);
  };
  stops.add("pool", closing, () => waitsFor());
  return artifacts;
}

async function startNetwork(
  { config, log, progress, stops }: MachinesNeeds,
  tag: string,
  runDir: string,
  { native }: HostSetup,
): Promise<Network> {
  stops.add("run folder", async () => {
    if (stops.suspend) await removeEmptyFolder(runDir);
  });
  const place = { tag, stateDir: networkState(tag), native };
  const removal = async (): Promise<void> => {
    if (stops.suspend) await destroyNetwork(place);
  };
  stops.add("what is left of the network", removal, () => native.underWay());
  const bounded = boundedLog(log);
  const network = await openNetwork({
    ...place,
    subnet: config.subnet,
    subnetFile: join(config.home, "subnet"),
    ...(config.dnsServers.length > 0 && { resolvers: async () => config.dnsServers }),
    progress: (step, detail) => progress.step(step, detail),
    onError: (error) => bounded.warn({ err: error }, "network"),
  });
  stops.add(
    "network",
    () => network.close(),
    () => native.underWay(),
  );
  return network;
}

/** Exists from the first start until a stop that removes everything. */
const networkState = (tag: string): string => join(`/run/cloche-${tag}`, "network");

/** Folders in which gVisor's drivers list running units. */
async function runningUnits(): Promise<string[]> {
  const names = (await readdir("/run")).filter((name) => name.startsWith("cloche-"));
  return names.map((name) => join("/run", name, "gvisor", "units"));
}
