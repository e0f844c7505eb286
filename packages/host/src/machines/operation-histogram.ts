// How long operations take, by operation and result.
import type { Histogram, Metrics } from "@cloche/base";

export const operationHistogram = (metrics: Metrics): Histogram =>
  metrics.histogram(
    "cloche_machine_operation_seconds",
    "Time that the host took for an operation of a machine, waiting in its queue included.",
  );
