/** `down`: stop the service of this home, machines suspended. Also cleans up after one that was killed. */
import { join } from "node:path";
import { createLog, type Config } from "@cloche/base";
import { startService } from "./compose.ts";
import { requestStop } from "./control-socket.ts";
import { terminalProgress } from "./progress.ts";
import { readStatus } from "./status-file.ts";

export async function down(config: Config): Promise<void> {
  if (await requestStop(config.home)) {
    console.error("stopped; running sandboxes are suspended and come back with the next start");
    return;
  }
  if ((await readStatus(config.home)) === undefined) {
    console.error(`nothing to stop: no service has run with CLOCHE_HOME=${config.home}`);
    return;
  }
  // Killed or crashed: its machines may still run. Take them over once, to suspend them properly.
  const log = createLog({ level: config.logLevel, file: join(config.home, "log", "service.log") });
  const service = await startService(config, log, terminalProgress(), { serve: false });
  await service.stop({ suspend: true });
  console.error("nothing was serving; what it had left running is suspended");
}
