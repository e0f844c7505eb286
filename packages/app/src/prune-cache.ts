/** `prune-cache`: asks the running service of this home to remove unused artifacts, since it knows those that it uses. */
import type { Config } from "@cloche/base";
import { giveOrder } from "./control-socket.ts";

/** The answer of the control socket. */
interface Answer {
  removed: string[];
  kept: number;
}

/** False: no service is running. */
export async function pruneCache(config: Config, json: boolean): Promise<boolean> {
  const answer = (await giveOrder(config.home, "prune-cache")) as Answer | undefined;
  if (answer === undefined) {
    console.error(`no service is running with CLOCHE_HOME=${config.home}; start it first`);
    return false;
  }
  if (json) console.log(JSON.stringify(answer));
  else {
    for (const name of answer.removed) console.log(`removed ${name}`);
    console.log(`${answer.removed.length} removed, ${answer.kept} kept in ${config.cache}`);
  }
  return true;
}
