/** A sandbox in the format of E2B's API. */
import type { SandboxInfo } from "@cloche/sdk";
import type { Fields } from "../http.ts";
import type { Sandboxes } from "../envd/sandboxes.ts";

/** The version of envd, which tells clients the features of port 49983. */
export const envdVersion = "0.6.4";
/** The end of a sandbox without an end: E2B's sandboxes always have one. */
const never = "9999-12-31T23:59:59.000Z";
const clientID = "cloche";

export type E2bState = "running" | "paused";

/** Undefined: being deleted or failed, for which E2B has no state. */
export function stateOf({ state }: Pick<SandboxInfo, "state">): E2bState | undefined {
  switch (state) {
    case "SANDBOX_STATE_CREATING":
    case "SANDBOX_STATE_RUNNING":
    case "SANDBOX_STATE_RESUMING":
      return "running";
    case "SANDBOX_STATE_SUSPENDING":
    case "SANDBOX_STATE_SUSPENDED":
      return "paused";
    case "SANDBOX_STATE_DELETING":
    case "SANDBOX_STATE_ERROR":
      return undefined;
  }
}

export const isPublic = ({ public_ports }: SandboxInfo): boolean => public_ports.includes("*");
export const trafficName = (sandboxId: string): string => `traffic:${sandboxId}`;
export const templateOf = ({ source_checkpoint_id, template }: SandboxInfo): string =>
  source_checkpoint_id || template;

/** The answer of a create, connect or fork: the address and token of the sandbox. */
export function access(sandboxes: Sandboxes, apiKey: string, info: SandboxInfo): Fields {
  return {
    templateID: templateOf(info),
    sandboxID: info.id,
    alias: info.template,
    clientID,
    envdVersion,
    envdAccessToken: sandboxes.issueToken(apiKey, info.id),
    trafficAccessToken: isPublic(info) ? null : sandboxes.issueToken(apiKey, trafficName(info.id)),
    domain: sandboxes.domain,
  };
}

export function listed(info: SandboxInfo): Fields {
  const isPaused = stateOf(info) === "paused";
  return {
    templateID: templateOf(info),
    alias: info.template,
    sandboxID: info.id,
    clientID,
    startedAt: info.created_at,
    endAt: info.expires_at || (isPaused ? info.updated_at : never),
    cpuCount: Math.max(1, Math.ceil(info.cpus)),
    memoryMB: info.memory_mb,
    diskSizeMB: info.disk_mb,
    metadata: info.metadata,
    state: stateOf(info) ?? "running",
    envdVersion,
    volumeMounts: [],
  };
}

export function detail(sandboxes: Sandboxes, apiKey: string, info: SandboxInfo): Fields {
  const { egress } = info;
  const isNarrowed = egress.mode !== "open";
  return {
    ...listed(info),
    envdAccessToken: sandboxes.issueToken(apiKey, info.id),
    domain: sandboxes.domain,
    allowInternetAccess: egress.mode === "none" ? false : null,
    network: {
      allowPublicTraffic: isPublic(info),
      ...(isNarrowed && { denyOut: ["0.0.0.0/0"], allowOut: [...egress.cidrs, ...egress.domains] }),
    },
    lifecycle: { autoResume: info.auto_resume, onTimeout: info.on_timeout === "suspend" ? "pause" : "kill" },
  };
}
