import type { Config } from "@cloche/base";
import { readStatus } from "./status-file.ts";

/** Prints the status of the service of this home; false when none is ready. */
export async function printStatus(config: Config, json: boolean): Promise<boolean> {
  const status = await readStatus(config.home);
  if (status === undefined) {
    console.error(`cloche: no service has run with CLOCHE_HOME=${config.home}; start one with npm start`);
    return false;
  }
  if (json) console.log(JSON.stringify(status, null, 2));
  else {
    const lines: [string, string][] = [
      ["state", status.ready ? `ready (pid ${status.pid})` : "not running"],
      ["gateway", status.gateway_url],
      ["edge", status.edge_url],
      ["domains", `<id>.${status.base_domain}`],
      ["ca", status.ca_cert],
      ["runtime", status.emulated ? `${status.runtime}; virtual machines are emulated` : status.runtime],
      ["version", status.version],
    ];
    for (const [name, value] of lines) console.log(`${name.padEnd(8)} ${value}`);
  }
  return status.ready;
}
