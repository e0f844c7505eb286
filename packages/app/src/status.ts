import type { Config } from "@cloche/base";
import { gvisorAge, gvisorText } from "./gvisor-age.ts";
import { isOfRole, readStatus, type RoleStatus } from "./status-file.ts";

/** Prints the status of the service of this home; false when none is ready. */
export async function printStatus(config: Config, json: boolean): Promise<boolean> {
  const status = await readStatus(config.home);
  if (status === undefined) {
    console.error(`cloche: no service has run with CLOCHE_HOME=${config.home}; start one with npm start`);
    return false;
  }
  const { gvisor } = status;
  const nowMs = Date.now();
  const age = gvisor && gvisorAge(gvisor, nowMs);
  if (json) {
    console.log(JSON.stringify({ ...status, ...(gvisor && { gvisor: { ...gvisor, ...age } }) }, null, 2));
  } else if (isOfRole(status)) {
    for (const [name, value] of Object.entries(roleLines(status))) console.log(`${name.padEnd(8)} ${value}`);
  } else {
    const lines: [string, string][] = [
      ["state", status.ready ? `ready (pid ${status.pid})` : "not running"],
      ["gateway", status.gateway_url],
      ["edge", status.edge_url],
      ...(status.data_plane_url === undefined
        ? []
        : [["address", `${status.data_plane_url}/sandboxes/<id>`] as [string, string]]),
      ...(status.mcp_url === undefined ? [] : [["mcp", status.mcp_url] as [string, string]]),
      ["domains", `<id>.${status.base_domain}`],
      ["ca", status.ca_cert],
      ["runtime", status.emulated ? `${status.runtime}; virtual machines are emulated` : status.runtime],
      ...(gvisor ? [["gVisor", gvisorText(gvisor, nowMs)] as [string, string]] : []),
      ...(status.subnet === undefined ? [] : [["subnet", status.subnet] as [string, string]]),
      ...(status.e2b === undefined ? [] : [["E2B", status.e2b.api_url] as [string, string]]),
      ["version", status.version],
      ...(age?.warning === undefined ? [] : [["warning", age.warning] as [string, string]]),
    ];
    // As wide as the longest name of what `cloche status` adds (packages/cli): one table to its reader.
    for (const [name, value] of lines) console.log(`${name.padEnd(9)}  ${value}`);
  }
  return status.ready;
}

function roleLines(status: RoleStatus): Record<string, string> {
  const { gateway_url: gateway, edge_url: edge, cluster_address: cluster } = status;
  return {
    state: status.ready ? `ready (pid ${status.pid})` : "not running",
    role: `${status.role} ${status.id}`,
    ...(gateway !== undefined && { gateway }),
    ...(edge !== undefined && { edge }),
    ...(cluster !== undefined && { cluster }),
    ...(status.ca_cert !== undefined && { ca: status.ca_cert }),
    ...(status.runtime !== undefined && { runtime: status.runtime }),
    version: status.version,
  };
}
