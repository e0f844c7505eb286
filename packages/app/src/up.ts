/** `up`: set up what is missing, serve until stopped. */
import { join } from "node:path";
import { createLog, type Config, rfc3339 } from "@cloche/base";
import { holdHome } from "@cloche/host/setup";
import { printBanner } from "./banner.ts";
import { startService } from "./compose.ts";
import { openControlSocket } from "./control-socket.ts";
import { terminalProgress } from "./progress.ts";

/** Serves in this process. SIGTERM and SIGINT end it and leave machines running; the control socket's stop suspends them. */
export async function up(config: Config, { banner = true }: { banner?: boolean } = {}): Promise<void> {
  const log = createLog({ level: config.logLevel, file: join(config.home, "log", "service.log") });
  let stopping: Promise<void> | undefined;
  let running: Awaited<ReturnType<typeof startService>> | undefined;
  const stop = (options: { suspend: boolean }): Promise<void> => {
    stopping ??= (async () => {
      await running?.stop(options);
      control.close();
    })();
    return stopping;
  };
  const rotateSigningKey = async (): Promise<object> => {
    if (running === undefined) throw new Error("the service is starting; try again when it is ready");
    const { kid, retiring } = await running.rotateSigningKey();
    return { kid, retiring: retiring.map((one) => ({ kid: one.kid, removed_at: rfc3339(one.atMs) })) };
  };
  const pruneCache = async (): Promise<object> => {
    if (running === undefined) throw new Error("the service is starting; try again when it is ready");
    return { ...(await running.pruneCache()) };
  };
  if (config.hostInPod) await waitForHome(config.home, (text) => log.info({}, text));
  const control = await openControlSocket(config.home, { stop, rotateSigningKey, pruneCache });
  const progress = terminalProgress((step, ms) => log.info({ step, ms }, "start step"));
  running = await startService(config, log, progress);
  progress.done();
  let lost: string | undefined;
  const ended = new Promise<void>((resolve) => {
    // Its machines stay as they are: whose they are now is not for this service to say.
    void running?.lost.then((why) => {
      lost = why;
      log.error({ why }, "this service ends: another has taken its place");
      void stop({ suspend: false }).finally(resolve);
    });
    const end = (): void => void stop({ suspend: false }).finally(resolve);
    process.once("SIGTERM", end);
    process.once("SIGINT", end);
    control.once("close", resolve);
  });
  if (banner) await printBanner(config, running.status);
  await ended;
  await stopping;
  log.info({}, "service stopped");
  if (lost !== undefined)
    console.error(`cloche: ${lost}. This service has ended; its machines were left as they are`);
  process.exit(lost === undefined ? 0 : 1);
}

/** A pod that is replaced may still be ending when the next one starts: what runs is adopted by one host at a time. */
export async function waitForHome(home: string, tell: (text: string) => void): Promise<void> {
  await holdHome(home, () => tell("another host of this home is still running; waiting for its end"));
}
