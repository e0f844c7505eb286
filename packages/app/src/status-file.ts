/**
 * `<home>/run/status.json`: printed by `cloche status --json`, and read by every local client to find the service. The service writes
 * it when it is ready, and with `ready: false` when it stops. A dead pid means that the service was killed.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, writeDurably } from "@cloche/base";
import type { GvisorStatus } from "./gvisor-age.ts";

export interface ServiceStatus {
  gateway_url: string;
  /** The address to connect to for any sandbox domain. */
  edge_url: string;
  /** The one address of all sandboxes: `<data plane URL>/sandboxes/<id>/v1/…`. Absent in the file of an earlier release. */
  data_plane_url?: string;
  /** The address for MCP clients over HTTP. Absent if switched off, and in the file of an earlier release. */
  mcp_url?: string;
  base_domain: string;
  /** PEM file of the authority that signed the edge's certificate. */
  ca_cert: string;
  api_key: string;
  /** The default runtime of sandboxes. */
  runtime: string;
  /** True if virtual machines run without KVM, which is many times slower. */
  emulated: boolean;
  /** The gVisor of this host; absent in the file of an earlier release. */
  gvisor?: GvisorStatus;
  /** Addresses between host and sandboxes: an IPv4 /16. Absent in the file of an earlier release. */
  subnet?: string;
  /** For E2B's clients (docs/e2b.md); absent if that endpoint is off. */
  e2b?: { api_url: string; sandbox_url: string; api_key: string };
  /** Machines that the database did not know when the service started (`cloche orphans`); absent: none. */
  orphans_at_start?: number;
  version: string;
  pid: number;
  ready: boolean;
}

/** Status of a part of a cluster. Fields that do not apply are absent. */
export interface RoleStatus extends Partial<Omit<ServiceStatus, "version" | "pid" | "ready">> {
  role: "gateway" | "edge" | "host";
  /** CLOCHE_NODE_ID. */
  id: string;
  /** The address of a gateway or a host for other parts of the cluster. */
  cluster_address?: string;
  version: string;
  pid: number;
  ready: boolean;
}

export const statusPath = (home: string): string => join(home, "run", "status.json");

export async function writeStatus(home: string, status: ServiceStatus | RoleStatus): Promise<void> {
  await mkdir(join(home, "run"), { recursive: true, mode: 0o755 });
  await writeDurably(statusPath(home), `${JSON.stringify(status, null, 2)}\n`, 0o600);
}

/** The present status: `ready` only if the process that wrote it is alive. Undefined: never started. */
export async function readStatus(home: string): Promise<ServiceStatus | RoleStatus | undefined> {
  const status = (await readJsonFile(statusPath(home))) as ServiceStatus | RoleStatus | undefined;
  if (status === undefined) return undefined;
  return (await isServiceProcess(status.pid)) ? status : { ...status, pid: 0, ready: false };
}

/** Whether the status is that of a cluster's part instead of a single machine. */
export const isOfRole = (status: ServiceStatus | RoleStatus): status is RoleStatus => "role" in status;

/** The second is the program of releases up to 0.1.0, which may still run. */
const mainPrograms = ["packages/app/src/main.ts", "service/src/main.ts"];

/** Pids are reused, so the command line is checked too. */
async function isServiceProcess(pid: number): Promise<boolean> {
  if (pid <= 0) return false;
  try {
    const commandLine = await readFile(`/proc/${pid}/cmdline`, "utf8");
    return mainPrograms.some((program) => commandLine.includes(program));
  } catch {
    return false;
  }
}
