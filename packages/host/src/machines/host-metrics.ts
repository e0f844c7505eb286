/**
 * What an operator can see of this host: machines, machines kept ready, memory, pool, uploads, and how long operations take.
 */
import { readFile, statfs } from "node:fs/promises";
import type { Metrics } from "@cloche/base";
import type { CheckpointCatalogue } from "../checkpoint/catalogue.ts";
import type { MachineDriver } from "../drivers/driver.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { Machines } from "./machines.ts";

export interface HostMetricsParts {
  metrics: Metrics;
  machines: Machines;
  drivers: Drivers;
  checkpoints: CheckpointCatalogue;
  poolDir: string;
}

/** Registers the gauges. */
export function hostMetrics({ metrics, machines, drivers, checkpoints, poolDir }: HostMetricsParts): void {
  metrics.gauge("cloche_machines", "Machines of this host by runtime and phase.", () => {
    const counts = new Map<string, { labels: { runtime: string; phase: string }; value: number }>();
    for (const { runtime, phase } of machines.all()) {
      const known = counts.get(`${runtime} ${phase}`) ?? { labels: { runtime, phase }, value: 0 };
      known.value += 1;
      counts.set(`${runtime} ${phase}`, known);
    }
    return [...counts.values()];
  });

  const byKind = (countsOf: (driver: MachineDriver) => Record<string, number> | undefined) => () =>
    drivers.all().flatMap((driver) =>
      Object.entries(countsOf(driver) ?? {}).map(([kind, value]) => ({
        labels: { runtime: driver.runtime, kind },
        value,
      })),
    );
  metrics.gauge(
    "cloche_ready_machines",
    "Machines made ahead, by kind.",
    byKind((driver) => driver.ready?.counts()),
  );
  metrics.gauge(
    "cloche_ready_machines_wanted",
    "Machines to be kept ready, by kind: from CLOCHE_WARM_POOL to CLOCHE_WARM_POOL_MAX, by what was asked for at once lately.",
    byKind((driver) => driver.ready?.wanted()),
  );

  metrics.gauge(
    "cloche_dozing_machines",
    "Running machines that are frozen because nothing happens in them.",
    () => [{ value: machines.doze.dozing }],
  );

  metrics.gauge("cloche_machines_memory_bytes", "Memory promised to machines that run.", () => {
    const running = machines.all().filter(({ phase }) => phase === "running");
    return [{ value: running.reduce((sum, { memoryMb }) => sum + memoryMb * 1_048_576, 0) }];
  });

  metrics.gauge("cloche_memory_bytes", "Memory of this host.", async () => {
    const text = await readFile("/proc/meminfo", "utf8");
    const read = (name: string): number =>
      Number(new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(text)?.[1] ?? Number.NaN) * 1_024;
    return [
      { labels: { kind: "total" }, value: read("MemTotal") },
      { labels: { kind: "available" }, value: read("MemAvailable") },
    ];
  });

  metrics.gauge("cloche_pool_bytes", "Space of the disk pool.", async () => {
    const { blocks, bavail, bsize } = await statfs(poolDir);
    return [
      { labels: { kind: "total" }, value: blocks * bsize },
      { labels: { kind: "available" }, value: bavail * bsize },
    ];
  });

  metrics.gauge("cloche_checkpoint_uploads", "Checkpoints that are not in storage yet.", () => [
    { value: checkpoints.uploading },
  ]);
}
