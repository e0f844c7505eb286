// The host as the composition root sees it: HostService, the handler of the data plane's checkpoint routes, start and stop.
import { join } from "node:path";
import { eachLimited } from "@cloche/base";
import type { HostService } from "@cloche/protocol/host";
import type { ServiceImpl } from "@connectrpc/connect";
import { CheckpointArchive } from "../checkpoint/archive.ts";
import { defaults } from "@cloche/protocol";
import { CheckpointQuota } from "../checkpoint/quota.ts";
import { CheckpointCatalogue } from "../checkpoint/catalogue.ts";
import { diskUsage } from "../disk/disk.ts";
import { checkpointSeeds } from "./checkpoint-seeds.ts";
import { type HostDataPlane, hostDataPlane } from "./data-plane.ts";
import { DozeWatch } from "./doze-watch.ts";
import { DiskSeeds } from "./disk-seeds.ts";
import type { OperationParts } from "./create-machine.ts";
import { SharedSnapshots } from "./fork-machine.ts";
import { hostMetrics } from "./host-metrics.ts";
import { hostService } from "./host-service.ts";
import { FileJournal } from "./journal.ts";
import { IdleWatch } from "./idle-watch.ts";
import { readyHooks } from "./ready-hooks.ts";
import { type HostParts, Machines } from "./machines.ts";
import { coldStart, recover } from "./recovery.ts";
import { RestartBudget, restartAfterCrash } from "./restart-after-crash.ts";
import { suspendAll } from "./suspend-all.ts";

/** Images of visible checkpoints kept on the pool, from where a restore is instant. */
const LOCAL_IMAGES = 256;

export interface Host {
  /** For createRouterTransport in one process, or a Connect server between machines. */
  readonly service: ServiceImpl<typeof HostService>;
  /** Answers the data plane's checkpoint and restore routes; the edge hands them over. */
  readonly dataPlane: HostDataPlane;
  /** Probes the drivers, adopts what runs, finishes what a crash cut off. Cold starts go on after it answers. */
  start(): Promise<void>;
  /**
   * Ends streams and watchers once the operations under way have ended. With `suspend` every running machine is suspended
   * first (one whose memory cannot be saved is shut down, its disk kept); without, machines go on for the next start.
   */
  stop(options: { suspend: boolean }): Promise<void>;
}

export function createHost(parts: HostParts): Host {
  const machines = new Machines(parts);
  const journal = parts.journal ?? new FileJournal(join(parts.runDir, "journal", "sagas"));
  const snapshots = new SharedSnapshots(machines);
  const checkpoints = openCatalogue(parts);
  const quota = new CheckpointQuota(parts.checkpointLimits ?? defaults.checkpointLimits, (teamId) =>
    checkpoints.list(teamId),
  );
  const seeds = new DiskSeeds(parts.templates, checkpointSeeds(checkpoints));
  const operations: OperationParts = { machines, journal, seeds, snapshots };
  const idle = new IdleWatch(machines);
  const dozes = new DozeWatch(machines, (parts.dozeSeconds ?? 0) * 1_000);
  hostMetrics(machines.metrics, machines, checkpoints);
  const starting = new Set<Promise<void>>();

  const restarts = new RestartBudget(() => parts.clock.nowMs());

  const crashed = (id: string, reason: string): void => {
    void machines.queue.run(id, () => restartAfterCrash(operations, restarts, id, reason));
  };

  return {
    service: hostService(operations, checkpoints, dozes),
    dataPlane: hostDataPlane({ machines, checkpoints, quota }),
    async start() {
      await journal.open();
      await machines.loadKeys();
      for (const driver of parts.drivers.values()) {
        driver.onExit(crashed);
        await driver.probe();
      }
      // Before recovery: a create that goes on may need a checkpoint.
      await checkpoints.start();
      const { coldStarts } = await recover(operations);
      for (const driver of parts.drivers.values()) await driver.start(readyHooks(machines, driver.runtime));
      idle.start();
      dozes.start();
      const all = eachLimited(coldStarts, (id) => coldStart(operations, id));
      starting.add(all);
      void all.finally(() => starting.delete(all));
    },
    async stop({ suspend }) {
      await dozes.stop();
      await idle.stop();
      await Promise.all(starting);
      await machines.queue.drain();
      if (suspend) await suspendAll(operations);
      await checkpoints.stop();
      machines.events.close();
      for (const driver of parts.drivers.values()) await driver.stop();
      await machines.store.close();
      if (suspend) await journal.close();
    },
  };
}

function openCatalogue(parts: HostParts): CheckpointCatalogue {
  const { blobs, native, templates, clock, randomBytes, log } = parts;
  return new CheckpointCatalogue({
    dir: join(parts.poolDir, "checkpoints"),
    archive: new CheckpointArchive({ blobs, native, randomBytes, nowMs: () => clock.nowMs() }),
    template: async (diskMb) => ({ name: templates.key, image: await templates.ofSize(diskMb) }),
    localImages: LOCAL_IMAGES,
    exclusiveBytes: async (image) => (await diskUsage(native, image)).exclusiveBytes,
    nowMs: () => clock.nowMs(),
    randomBytes,
    log,
  });
}
