/** `up`: sets up missing artifacts and serves until stopped. */
import type { Config } from "@cloche/base";
import { holdHome } from "@cloche/host/setup";
import { printBanner } from "./banner.ts";
import { type RunningService, startService } from "./compose.ts";
import { serve } from "./serve.ts";

/** Serves in this process. SIGTERM and SIGINT end it and keep machines running; the control socket's stop suspends them. */
export async function up(config: Config, { banner = true }: { banner?: boolean } = {}): Promise<void> {
  await serve<RunningService>(config, {
    ...(config.hostInPod && { before: (report) => waitForHome(config.home, report) }),
    start: (log, progress) => startService(config, log, progress),
    async ready({ status }) {
      if (banner) await printBanner(config, status);
    },
  });
}

/** Waits for the lock of the home: a replaced pod may still be ending, and only one host at a time may adopt machines. */
export async function waitForHome(home: string, report: (text: string) => void): Promise<void> {
  await holdHome(home, () => report("another host of this home is still running; waiting for its end"));
}
