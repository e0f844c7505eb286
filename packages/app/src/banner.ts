import type { Config } from "@cloche/base";
import { checkResolution } from "./resolution.ts";
import { gvisorAge, gvisorText } from "./gvisor-age.ts";
import type { ServiceStatus } from "./status-file.ts";

/** Prints the addresses, the API key and a working curl, for a first user. */
export async function printBanner(
  config: Config,
  status: ServiceStatus,
  nowMs: number = Date.now(),
): Promise<void> {
  const { gvisor } = status;
  const warning = gvisor && gvisorAge(gvisor, nowMs).warning;
  const resolution = await checkResolution(config.baseDomain, {
    host: config.edgeHost,
    port: config.edgePort,
  });
  const lines = [
    "",
    `Cloche ${status.version} is ready (${status.runtime}${status.emulated ? ", emulated" : ""}).`,
    "",
    `  gateway   ${status.gateway_url}`,
    `  API key   ${status.api_key}`,
    `  CA file   ${status.ca_cert}`,
    `  domains   https://<sandbox id>.${status.base_domain}:${config.edgePort}`,
    ...(status.data_plane_url ? [`  address   ${status.data_plane_url}/sandboxes/<sandbox id>`] : []),
    ...(status.mcp_url ? [`  MCP       ${status.mcp_url}`] : []),
    ...(status.subnet ? [`  subnet    ${status.subnet}`] : []),
    ...(gvisor ? [`  gVisor    ${gvisorText(gvisor, nowMs)}`] : []),
    ...(warning ? ["", `WARNING: ${warning}`] : []),
    ...orphanLines(status.orphans_at_start ?? 0),
    "",
    "Create a sandbox:",
    "",
    `  curl -s ${status.gateway_url}/cloche.public.v1.SandboxService/CreateSandbox \\`,
    `    -H 'Authorization: Bearer ${status.api_key}' -H 'Content-Type: application/json' -d '{}'`,
    "",
    "or: npx cloche create, then npx cloche exec <name> -- uname -a",
    "",
  ];
  if (!resolution.resolves) lines.push(resolution.remedy, "");
  console.log(lines.join("\n"));
}

const orphanLines = (orphans: number): string[] =>
  orphans === 0
    ? []
    : [
        "",
        `WARNING: the database does not know ${orphans === 1 ? "1 machine" : `${orphans} machines`} of this host, as after a restore of a backup.`,
        "Nothing of them is destroyed: npx cloche orphans lists them, and adopts or deletes them.",
      ];
