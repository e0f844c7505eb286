import { isSandboxId } from "@cloche/protocol";

/** The target of a request: a sandbox's data plane, or a port of one of its own servers. */
export interface Target {
  sandboxId: string;
  /** Port inside the sandbox (`<port>-<id>.<base domain>`); undefined: the data plane. */
  port: number | undefined;
  /** The host name without port, in lower case; SNI must have the same. */
  hostname: string;
  /** Set at the shared address of all sandboxes (shared-address.ts); undefined: the sandbox's own domain. */
  prefix?: string;
}

/**
 * Reads a Host header, `<id>.<base domain>[:port]` or `<port>-<id>.<base domain>[:port]`, in any letter case and with
 * or without the DNS root's dot. Undefined: the name is not of a sandbox (404). The port is not checked.
 */
export function parseAuthority(host: string, baseDomain: string): Target | undefined {
  const match = /^([a-z0-9.-]+?)\.?(?::\d{1,5})?$/i.exec(host);
  const hostname = match?.[1]?.toLowerCase();
  if (!hostname?.endsWith(`.${baseDomain}`)) return undefined;
  const label = hostname.slice(0, -baseDomain.length - 1);
  if (isSandboxId(label)) return { sandboxId: label, port: undefined, hostname };
  const portMatch = /^([1-9]\d{0,4})-(sbx-.*)$/.exec(label);
  const sandboxId = portMatch?.[2] ?? "";
  const port = Number(portMatch?.[1]);
  if (!isSandboxId(sandboxId) || port > 65_535) return undefined;
  return { sandboxId, port, hostname };
}
