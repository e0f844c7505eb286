/**
 * Runs the program of a home until it is stopped: log file, control socket, signals. SIGTERM and SIGINT end it and keep machines
 * running; the control socket's stop (`down`) suspends them.
 */
import { chmod, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { type Config, createLog, type Log } from "@cloche/base";
import { openControlSocket } from "./control-socket.ts";
import type { Orders } from "./orders.ts";
import { type ProgressPrinter, terminalProgress } from "./progress.ts";
import { reportWaiting } from "./report-waiting.ts";

export interface Running {
  /** Resolves, with the reason, when the program must stop because another service has taken over. */
  readonly lost?: Promise<string>;
  /** With `suspend` every running machine is suspended first; without it machines run on for the next start. */
  stop(options: { suspend: boolean }): Promise<void>;
  /** The part whose stop takes long, and what it waits for; undefined: none does. */
  waiting(): string | undefined;
  readonly orders: Orders;
}

export interface Served<R extends Running> {
  start(log: Log, progress: ProgressPrinter): Promise<R>;
  /** Called when the program serves. */
  ready(running: R): Promise<void>;
  /** Called before anything in the home is changed; `tell` prints what it waits for. */
  before?(report: (text: string) => void): Promise<void>;
}

/** Ends the process. */
export async function serve<R extends Running>(
  config: Config,
  { start, ready, before }: Served<R>,
): Promise<void> {
  await closeToOthers(config.home);
  const log = createLog({ level: config.logLevel, file: join(config.home, "log", "service.log") });
  let stopping: Promise<void> | undefined;
  let running: R | undefined;
  const stop = (options: { suspend: boolean }): Promise<void> => {
    stopping ??= (async () => {
      const endReports = reportWaiting(async () => running?.waiting());
      try {
        await running?.stop(options);
      } finally {
        endReports();
        control.close();
      }
    })();
    return stopping;
  };
  await before?.((text) => log.info({}, text));
  const control = await openControlSocket(config.home, {
    stop,
    waiting: () => running?.waiting(),
    orders() {
      if (running === undefined) throw new Error("the service is starting; try again when it is ready");
      return running.orders;
    },
  });
  const progress = terminalProgress((step, ms) => log.info({ step, ms }, "start step"));
  running = await start(log, progress);
  progress.done();
  let lost: string | undefined;
  const ended = new Promise<void>((resolve) => {
    // Machines stay as they are: they may belong to the other service now.
    void running?.lost?.then((why) => {
      lost = why;
      log.error({ why }, "this service ends: another has taken its place");
      void stop({ suspend: false })
        .catch(() => undefined)
        .finally(resolve);
    });
    // `stopping` has the failure.
    const end = (): void =>
      void stop({ suspend: false })
        .catch(() => undefined)
        .finally(resolve);
    process.once("SIGTERM", end);
    process.once("SIGINT", end);
    control.once("close", resolve);
  });
  await ready(running);
  await ended;
  await stopping;
  log.info({}, "service stopped");
  if (lost !== undefined)
    console.error(`cloche: ${lost}. This service has ended; its machines were left as they are`);
  process.exit(lost === undefined ? 0 : 1);
}

/** Only the service's user may look into the home. A home on a volume whose mode cannot be changed stays as it is. */
async function closeToOthers(home: string): Promise<void> {
  await mkdir(home, { recursive: true, mode: 0o700 });
  await chmod(home, 0o700).catch(() => undefined);
}
