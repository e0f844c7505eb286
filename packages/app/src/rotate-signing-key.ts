/** `rotate-signing-key`: asks the running service of this home for a new signing key and prints when older keys are removed. */
import type { Config } from "@cloche/base";
import { giveOrder } from "./control-socket.ts";

/** The answer of the control socket. */
interface Answer {
  kid: string;
  retiring: { kid: string; removed_at: string }[];
}

/** False: no service is running. */
export async function rotateSigningKey(config: Config, json: boolean): Promise<boolean> {
  const answer = (await giveOrder(config.home, "rotate-signing-key")) as Answer | undefined;
  if (answer === undefined) {
    console.error(`no service is running with CLOCHE_HOME=${config.home}; start it first`);
    return false;
  }
  if (json) console.log(JSON.stringify(answer));
  else {
    console.log(`tokens are signed with ${answer.kid}`);
    for (const { kid, removed_at } of answer.retiring)
      console.log(`${kid} verifies until ${removed_at} and is removed then`);
  }
  return true;
}
