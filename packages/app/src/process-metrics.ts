/** Metrics of the process, under the usual names of Prometheus clients. */
import { readdirSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import type { Metrics } from "@cloche/base";

export function processMetrics(metrics: Metrics, version: string): void {
  const startSeconds = Date.now() / 1_000 - process.uptime();
  const delay = monitorEventLoopDelay({ resolution: 20 });
  delay.enable();

  metrics.gauge("cloche_build_info", "Always 1; the release that runs.", () => [
    { labels: { version }, value: 1 },
  ]);
  metrics.gauge("process_start_time_seconds", "Start of the process, Unix time.", () => [
    { value: startSeconds },
  ]);
  metrics.gauge("process_resident_memory_bytes", "Resident memory.", () => [
    { value: process.memoryUsage.rss() },
  ]);
  metrics.gauge("nodejs_heap_used_bytes", "JavaScript heap in use.", () => [
    { value: process.memoryUsage().heapUsed },
  ]);
  metrics.gauge("process_open_fds", "Open file descriptors.", () => [
    { value: readdirSync("/proc/self/fd").length },
  ]);
  metrics.gauge(
    "process_cpu_seconds_total",
    "CPU time of the process, user and system.",
    () => {
      const { user, system } = process.cpuUsage();
      return [{ value: (user + system) / 1_000_000 }];
    },
    "counter",
  );
  metrics.gauge("nodejs_eventloop_delay_seconds", "Delay of the event loop since the last look.", () => {
    const samples = [
      { labels: { quantile: "0.5" }, value: delay.percentile(50) / 1e9 },
      { labels: { quantile: "0.99" }, value: delay.percentile(99) / 1e9 },
    ];
    delay.reset();
    return samples;
  });
}
