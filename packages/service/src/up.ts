/** `up`: set up what is missing, serve until stopped. */
import { spawn } from "node:child_process";
import { closeSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createLog, type Config } from "@cloche/base";
import { printBanner } from "./banner.ts";
import { startService } from "./compose.ts";
import { AlreadyRunning, openControlSocket, pingControl } from "./control-socket.ts";
import { terminalProgress } from "./progress.ts";
import { readStatus } from "./status-file.ts";

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
  const control = await openControlSocket(config.home, { stop });
  const progress = terminalProgress((step, ms) => log.info({ step, ms }, "start step"));
  running = await startService(config, log, progress);
  progress.done();
  const ended = new Promise<void>((resolve) => {
    const end = (): void => void stop({ suspend: false }).finally(resolve);
    process.once("SIGTERM", end);
    process.once("SIGINT", end);
    control.once("close", resolve);
  });
  if (banner) await printBanner(config, running.status);
  await ended;
  await stopping;
  log.info({}, "service stopped");
  process.exit(0);
}

/** Serves in a process of its own and returns when it is ready; what it prints until then is shown here. */
export async function upDetached(config: Config): Promise<void> {
  if (await pingControl(config.home))
    throw new AlreadyRunning(`a service of ${config.home} is running already`);
  mkdirSync(join(config.home, "log"), { recursive: true, mode: 0o700 });
  const consoleFile = join(config.home, "log", "console.log");
  const output = openSync(consoleFile, "w", 0o600);
  const main = fileURLToPath(new URL("main.ts", import.meta.url));
  const child = spawn(process.execPath, [...process.execArgv, main, "up", "--no-banner"], {
    detached: true,
    stdio: ["ignore", output, output],
  });
  closeSync(output);
  let exitCode: number | null | undefined;
  child.once("exit", (code) => {
    exitCode = code;
  });
  let shown = 0;
  const show = (): void => {
    const text = readFileSync(consoleFile, "utf8");
    process.stderr.write(text.slice(shown));
    shown = text.length;
  };
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    show();
    const status = await readStatus(config.home);
    if (status?.ready && status.pid === child.pid) {
      child.unref();
      return printBanner(config, status);
    }
    if (exitCode !== undefined) {
      show();
      throw new Error(
        `the service ended while starting (exit code ${exitCode}); see above and ${consoleFile}`,
      );
    }
  }
}
