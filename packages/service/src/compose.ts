/** The one place where the parts meet: gateway, edge and host in one process, talking through their contracts in memory. */
import type { Config, Log } from "@cloche/base";
import type { ProgressPrinter } from "./progress.ts";
import type { ServiceStatus } from "./status-file.ts";

export interface RunningService {
  readonly status: ServiceStatus;
  /** Stops serving. With `suspend` every running machine is suspended first; without, machines go on for the next start. */
  stop(options: { suspend: boolean }): Promise<void>;
}

export async function startService(
  _config: Config,
  _log: Log,
  _progress: ProgressPrinter,
  _options: { serve: boolean } = { serve: true },
): Promise<RunningService> {
  throw new Error("the parts are being joined");
}
