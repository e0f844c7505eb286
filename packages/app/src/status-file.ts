/**
 * `<home>/run/status.json`: what `cloche status --json` prints and where every local client finds the service. Written by
 * the service when it is ready, `ready: false` when it stops; a dead pid means it was killed.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, writeDurably } from "@cloche/base";
import type { GvisorStatus } from "./gvisor-age.ts";

export interface ServiceStatus {
  gateway_url: string;
  /** Where to connect for any sandbox domain. */
  edge_url: string;
  /** Of all sandboxes: `<data plane URL>/sandboxes/<id>/v1/…`. Absent in the file of an earlier release. */
  data_plane_url?: string;
  /** Where MCP clients connect over HTTP. Absent where it is switched off, and in the file of an earlier release. */
  mcp_url?: string;
  base_domain: string;
  /** PEM file of the authority that signed the edge's certificate. */
  ca_cert: string;
  api_key: string;
  /** Of sandboxes that ask for none. */
  runtime: string;
  /** Virtual machines run, and without KVM: many times slower. */
  emulated: boolean;
  /** What gVisor sandboxes run on; absent in the file of an earlier release. */
  gvisor?: GvisorStatus;
  /** Addresses between host and sandboxes: an IPv4 /16. Absent in the file of an earlier release. */
  subnet?: string;
  /** For E2B's clients (docs/e2b.md); absent where that endpoint is off. */
  e2b?: { api_url: string; sandbox_url: string; api_key: string };
  version: string;
  pid: number;
  ready: boolean;
}

/** Of a part of a cluster. What it does not have is absent. */
export interface RoleStatus extends Partial<Omit<ServiceStatus, "version" | "pid" | "ready">> {
  role: "gateway" | "edge" | "host";
  /** CLOCHE_NODE_ID. */
  id: string;
  /** Of a gateway or a host: where the others of the cluster reach it. */
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

/** The status as it is now: `ready` only when the process that wrote it lives. Undefined: never started. */
export async function readStatus(home: string): Promise<ServiceStatus | RoleStatus | undefined> {
  const status = (await readJsonFile(statusPath(home))) as ServiceStatus | RoleStatus | undefined;
  if (status === undefined) return undefined;
  return (await isServiceProcess(status.pid)) ? status : { ...status, pid: 0, ready: false };
}

/** Whether it is of a part of a cluster, rather than of a whole service. */
export const isOfRole = (status: ServiceStatus | RoleStatus): status is RoleStatus => "role" in status;

/** The second is that of releases to 0.1.0, which may still run. */
const MAIN_PROGRAMS = ["packages/app/src/main.ts", "service/src/main.ts"];

/** Pids are reused: it is ours only when its command line says so. */
async function isServiceProcess(pid: number): Promise<boolean> {
  if (pid <= 0) return false;
  try {
    const commandLine = await readFile(`/proc/${pid}/cmdline`, "utf8");
    return MAIN_PROGRAMS.some((program) => commandLine.includes(program));
  } catch {
    return false;
  }
}
