/** `up` while a service of this home runs: prints its addresses, once it is ready. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Config } from "@cloche/base";
import { printBanner } from "./banner.ts";
import { AlreadyRunning, pingControl } from "./control-socket.ts";
import { isOfRole, readStatus } from "./status-file.ts";

const checkMs = 200;

/** False: no service of this home is running. Throws AlreadyRunning for a part of a cluster. */
export async function showRunning(config: Config): Promise<boolean> {
  for (let isReported = false; await pingControl(config.home); isReported = true) {
    const status = await readStatus(config.home);
    if (status !== undefined && isOfRole(status))
      throw new AlreadyRunning(`the ${status.role} of ${config.home} is running already`);
    if (status?.ready === true) {
      console.error(`a service of ${config.home} is running already (pid ${status.pid})`);
      await printBanner(config, status);
      return true;
    }
    if (!isReported) console.error(`a service of ${config.home} is starting or stopping; waiting for it`);
    await sleep(checkMs);
  }
  return false;
}
