/** Composes a host: HostService, the handler of the data plane's checkpoint routes, start and stop. */
import { join } from "node:path";
import { Metrics, Turns } from "@cloche/base";
import type { HostService } from "@cloche/protocol/host";
import type { ServiceImpl } from "@connectrpc/connect";
import { CheckpointArchive } from "./checkpoint/archive.ts";
import { defaults } from "@cloche/protocol";
import { CheckpointQuota } from "./checkpoint/quota.ts";
import { CheckpointCatalogue } from "./checkpoint/catalogue.ts";
import { StorageSweeper } from "./checkpoint/storage-sweeper.ts";
import { diskBlocks } from "./disk/disk.ts";
import { bringToRest } from "./operations/bring-to-rest.ts";
import { checkpointSeeds } from "./operations/checkpoint-seeds.ts";
import { type HostDataPlane, hostDataPlane } from "./api/data-plane.ts";
import { DozeWatch } from "./idle/doze-watch.ts";
import { DiskSeeds } from "./operations/disk-seeds.ts";
import type { MachineParts } from "./operations/parts.ts";
import type { OperationParts } from "./operations/operation-parts.ts";
import { MachineSamples } from "./samples/machine-samples.ts";
import { GroupSnapshots } from "./operations/group-snapshots.ts";
import { SharedSnapshots } from "./operations/shared-snapshots.ts";
import { hostMetrics } from "./machines/host-metrics.ts";
import { Stopping } from "./stopping.ts";
import { hostService } from "./api/host-service.ts";
import { FileJournal } from "./operations/journal.ts";
import { ImageUploads } from "./operations/image-uploads.ts";
import { StoredImages } from "./suspended/stored-images.ts";
import { IdleWatch } from "./idle/idle-watch.ts";
import { readyHooks } from "./ready-hooks.ts";
import type { KeptAwake } from "./machines/doze.ts";
import { Machines } from "./machines/machines.ts";
import { OperationQueue } from "./machines/operation-queue.ts";
import { Agents } from "./agent-calls/agents.ts";
import { Drivers } from "./drivers/drivers.ts";
import type { HostParts } from "./host-parts.ts";
import type { RelayNeeds } from "./relay/relay.ts";
import type { HostLease } from "./lease/host-lease.ts";
import { Member } from "./member.ts";
import { coldStart, adoptRecordsAndSweep, recover } from "./operations/recovery.ts";
import { RestartBudget, restartAfterCrash } from "./operations/restart-after-crash.ts";
import { suspendAll } from "./operations/suspend-all.ts";

/** Images of visible checkpoints kept on the pool, so that a restore from them is instant. */
const onlyLocalImages = 256;
const coldStartsAtOnce = 8;
/** If a machine and its services take longer to start, the next one begins as well. */
const coldStartPlaceMs = 20_000;

export interface Host {
  /** For createRouterTransport in one process, or a Connect server between machines. */
  readonly service: ServiceImpl<typeof HostService>;
  /** Answers the data plane's checkpoint and restore routes, which the edge passes on. */
  readonly dataPlane: HostDataPlane;
  /** Only on a host in a cluster. */
  readonly lease?: Pick<HostLease, "generation" | "isHeld" | "operatorState" | "wasLost" | "awaitsAdmission">;
  /** The class that this host registers with: hosts of equal class restore each other's memory. Empty: none. */
  memoryClass(): Promise<string>;
  /** The machines' part of the relay of edges' connections (relay/relay.ts); `keepAwake`: for an edge in this process. */
  readonly reach: Pick<RelayNeeds, "agentOf" | "hold"> & { keepAwake(sandboxId: string): KeptAwake };
  /**
   * Probes the drivers, adopts running machines and finishes operations that a crash cut off. Cold starts, and the recovery of
   * machines that hang, go on after it resolves. In a cluster it first registers and waits until machines may run. Serve `service`
   * before: a host that was declared lost needs AdmitMachines, which names the machines that go on.
   */
  start(): Promise<void>;
  /** Resolves, after `start`, when every machine is in the state of its record. Resources that no machine has are then unused. */
  readonly recovered: Promise<void>;
  /**
   * Waits for operations under way, then ends streams and watchers. With `suspend` every running machine is suspended first (shut
   * down with its disk kept if its memory cannot be saved). Without it machines keep running for the next start, in a cluster for
   * ten minutes. A host whose lease is over suspends nothing: its machines are frozen and stay frozen.
   */
  stop(options: { suspend: boolean }): Promise<void>;
  /** What a stop under way waits for at this moment, with the sandboxes that operations are about. */
  stopWaitsFor(): string;
}

export function createHost(parts: HostParts): Host {
  const { metrics = new Metrics(), traceOperations = false } = parts;
  const member = Member.of(parts, metrics, () => describe(drivers));
  const { lease } = member ?? {};
  const requireMayChange = (): void => member?.requireLease();
  const drivers = new Drivers(parts.drivers, requireMayChange);
  const machines = new Machines({ ...parts, drivers });
  const queue = new OperationQueue({ ...parts, metrics, traceOperations });
  const agents = new Agents({ ...parts, machines });
  const journal = parts.journal ?? new FileJournal(join(parts.runDir, "journal", "sagas"));
  const basics = { ...parts, machines, queue, agents, drivers, journal };
  const snapshots = new SharedSnapshots(basics);
  const checkpoints = openCatalogue(parts);
  const quota = new CheckpointQuota(parts.checkpointLimits ?? defaults.checkpointLimits, (teamId) =>
    checkpoints.totals(teamId),
  );
  const seeds = new DiskSeeds(parts.templates, checkpointSeeds(checkpoints));
  const groups = new GroupSnapshots(snapshots, parts.clock);
  const images = openImages(parts, checkpoints, () => member?.generation ?? 0);
  const operations: OperationParts = { ...basics, seeds, snapshots, groups, images };
  const uploads = images && new ImageUploads({ ...basics, images });
  const sweeper = parts.cluster && new StorageSweeper({ ...parts, calls: parts.cluster.names });
  const { idle, samples, dozes } = watchesOf(parts, basics);
  hostMetrics({ ...basics, metrics, checkpoints });
  const recovered = Promise.withResolvers<void>();
  let isStopping = false;
  const stopping = new Stopping(queue);
  const { startCold, crashed } = revivals(operations, () => isStopping, lease);

  return {
    service: hostService(operations, { checkpoints, quota }, samples, member?.calls(operations)),
    dataPlane: hostDataPlane({ ...basics, checkpoints, quota, requireMayChange }),
    ...(lease && { lease }),
    memoryClass: () => drivers.memoryClass(),
    reach: reachOf(machines, requireMayChange),
    async start() {
      await lease?.open();
      await journal.open();
      await agents.keys.load();
      await probeAll(drivers, crashed, lease);
      // Before recovery, because an unfinished create may need a checkpoint.
      await checkpoints.start();
      await adoptRecordsAndSweep(operations);
      await member?.mayGoOn();
      recovered.resolve((await recover(operations, startCold)).finished);
      for (const driver of drivers.all()) await driver.start(readyHooks(basics, driver.runtime));
      idle.start();
      dozes.start();
      samples.start();
      uploads?.start();
      sweeper?.start();
      if (member) member.isStarted = true;
    },
    recovered: recovered.promise,
    async stop({ suspend }) {
      await stopping.step("watches", () => Promise.all([samples.stop(), dozes.stop(), idle.stop()]));
      isStopping = true;
      const ends = suspend && (lease?.isHeld ?? true);
      await stopping.step("operations", () => bringToRest(operations, { end: ends }));
      if (ends) await stopping.step("the suspend", () => suspendAll(operations));
      await stopping.step("checkpoint storage", () => Promise.all([sweeper?.stop(), uploads?.stop()]));
      await stopping.step("checkpoints", () => checkpoints.stop());
      machines.events.close();
      for (const driver of drivers.all()) await stopping.step(driver.runtime, () => driver.stop());
      agents.connections.closeAll();
      await stopping.step("records of machines", () => machines.store.close());
      if (ends) await stopping.step("the journal", () => journal.close());
      await stopping.step("the host's lease", () => lease?.close({ machinesGoOn: !ends }));
    },
    stopWaitsFor: () => stopping.waitsFor(),
  };
}

const describe = async (drivers: Drivers) => ({
  runtimes: drivers.runtimes,
  cpuClass: await drivers.memoryClass(),
});

const watchesOf = (parts: HostParts, basics: MachineParts) => ({
  idle: new IdleWatch(basics),
  samples: new MachineSamples(basics),
  dozes: new DozeWatch(basics, (parts.dozeSeconds ?? 0) * 1_000),
});

async function probeAll(
  drivers: Drivers,
  crashed: (id: string, reason: string) => void,
  lease: HostLease | undefined,
): Promise<void> {
  for (const driver of drivers.all()) {
    driver.onExit(crashed);
    if (lease) driver.standStillWhile?.(() => !lease.isHeld);
    await driver.probe();
  }
}

/** Starts machines without processes again; in a cluster only while the lease is held. */
function revivals(operations: OperationParts, isStopping: () => boolean, lease: HostLease | undefined) {
  const { queue, clock } = operations;
  const coldStarts = new Turns(coldStartsAtOnce);
  const restarts = new RestartBudget(() => clock.nowMs());
  return {
    /** Cold starts that have not begun when the host stops are left to the next start. */
    startCold(id: string): void {
      void coldStarts.patiently(clock, coldStartPlaceMs, async () => {
        await lease?.whenHeld();
        if (!isStopping()) await coldStart(operations, restarts, id);
      });
    },
    crashed(id: string, reason: string): void {
      void (async () => {
        // Wait outside the machine's turn, which a destroy may need meanwhile.
        await lease?.whenHeld();
        await queue.run(id, () => restartAfterCrash(operations, restarts, id, reason));
      })();
    },
  };
}

/** Undefined: the host is in no cluster. */
function openImages(
  parts: HostParts,
  checkpoints: CheckpointCatalogue,
  generation: () => number,
): StoredImages | undefined {
  const { blobs, native, clock, randomBytes, cluster, poolDir } = parts;
  if (cluster === undefined) return undefined;
  const nowMs = (): number => clock.nowMs();
  return new StoredImages({
    archive: new CheckpointArchive({ blobs, native, randomBytes, nowMs, poolDir, folder: "images" }),
    blobs,
    templates: checkpoints.templates,
    names: cluster.names,
    generation,
    randomBytes,
    nowMs,
  });
}

function openCatalogue(parts: HostParts): CheckpointCatalogue {
  const { blobs, native, templates, clock, randomBytes, log, cluster, poolDir } = parts;
  const nowMs = (): number => clock.nowMs();
  return new CheckpointCatalogue({
    dir: join(poolDir, "checkpoints"),
    archive: new CheckpointArchive({ blobs, native, randomBytes, nowMs, poolDir }),
    template: { name: templates.key, image: (diskMb) => templates.ofSize(diskMb) },
    localImages: onlyLocalImages,
    exclusiveBytes: async (image) => (await diskBlocks(native, image)).exclusiveBytes,
    nowMs,
    randomBytes,
    log,
    ...(cluster && { names: cluster.names }),
  });
}

const reachOf = (machines: Machines, requireMayRun: () => void): Host["reach"] => ({
  agentOf(id) {
    // Otherwise the call would hang, and the machine may run elsewhere.
    requireMayRun();
    const record = machines.find(id);
    return record?.phase === "running" ? { host: record.agentHost, port: record.agentPort } : undefined;
  },
  hold: (id) => machines.doze.hold(id),
  keepAwake: (id) => machines.doze.keepAwake(id),
});
