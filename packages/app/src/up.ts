/** `up`: set up what is missing, serve until stopped. */
import type { Config } from "@cloche/base";
import { holdHome } from "@cloche/host/setup";
import { printBanner } from "./banner.ts";
import { type RunningService, startService } from "./compose.ts";
import { serve } from "./serve.ts";

/** Serves in this process. SIGTERM and SIGINT end it and leave machines running; the control socket's stop suspends them. */
export async function up(config: Config, { banner = true }: { banner?: boolean } = {}): Promise<void> {
  await serve<RunningService>(config, {
    ...(config.hostInPod && { before: (tell) => waitForHome(config.home, tell) }),
    start: (log, progress) => startService(config, log, progress),
    async ready({ status }) {
      if (banner) await printBanner(config, status);
    },
  });
}

/** A pod that is replaced may still be ending when the next one starts: what runs is adopted by one host at a time. */
export async function waitForHome(home: string, tell: (text: string) => void): Promise<void> {
  await holdHome(home, () => tell("another host of this home is still running; waiting for its end"));
}
