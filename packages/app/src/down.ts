/** `down`: suspends the machines and stops the service of this home. Also cleans up after a killed service. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLog, type Config } from "@cloche/base";
import { startService } from "./compose.ts";
import { requestStop } from "./control-socket.ts";
import { terminalProgress } from "./progress.ts";
import { isOfRole, readStatus } from "./status-file.ts";
import { reportWaiting } from "./report-waiting.ts";

export async function down(config: Config): Promise<void> {
  const before = await readStatus(config.home);
  if (await requestStop(config.home)) {
    await whenGone(before?.pid ?? 0);
    const hasMachines = before === undefined || !isOfRole(before) || before.role === "host";
    console.error(
      hasMachines ? "stopped; running sandboxes are suspended and come back with the next start" : "stopped",
    );
    return;
  }
  const status = await readStatus(config.home);
  if (status !== undefined && isOfRole(status)) {
    console.error(
      status.role === "host"
        ? `no host is running with CLOCHE_HOME=${config.home}; start it and stop it again to suspend what it had left running`
        : `nothing to stop: no ${status.role} is running with CLOCHE_HOME=${config.home}`,
    );
    return;
  }
  if (status === undefined) {
    console.error(`nothing to stop: no service has run with CLOCHE_HOME=${config.home}`);
    return;
  }
  // The service was killed or crashed, and its machines may still run: adopt them once, to suspend them.
  const log = createLog({ level: config.logLevel, file: join(config.home, "log", "service.log") });
  const service = await startService(config, log, terminalProgress(), { serve: false });
  await service.stop({ suspend: true }).finally(reportWaiting(async () => service.waiting()));
  console.error("nothing was serving; what it had left running is suspended");
}

/** Waits for the end of the process, since the service answers before that: after a stop no process is left. */
async function whenGone(pid: number): Promise<void> {
  for (const untilMs = Date.now() + 30_000; pid > 0 && existsSync(`/proc/${pid}`) && Date.now() < untilMs; )
    await sleep(20);
}
