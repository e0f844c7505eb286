import type { SecureContext } from "node:tls";
import type { NodeFetchOptions } from "./node-connection.ts";

/** The target of a connection for a URL, and the trusted authorities. */
export interface NodeRoute {
  to(url: URL): { host: string; port: string; servername?: string };
  /** Made once, because reading all authorities takes ten milliseconds. Undefined: Node's default. */
  secureContext(): Promise<SecureContext | undefined>;
}

export function nodeRoute({ caCert, edgeUrl, baseDomain }: NodeFetchOptions): NodeRoute {
  const edge = edgeUrl === undefined ? undefined : new URL(edgeUrl);
  const suffix = baseDomain === undefined ? undefined : `.${baseDomain.toLowerCase()}`;
  let context: Promise<SecureContext | undefined> | undefined;
  return {
    to(url) {
      const isTls = url.protocol === "https:" || url.protocol === "wss:";
      const name = url.hostname.toLowerCase();
      const isSandbox = edge !== undefined && suffix !== undefined && name.endsWith(suffix);
      // Names below .localhost mean this machine (RFC 6761), but few name servers resolve them.
      const host = isSandbox ? edge.hostname : name.endsWith(".localhost") ? "127.0.0.1" : url.hostname;
      const port = (isSandbox ? edge : url).port || (isTls ? "443" : "80");
      // SNI takes names only, no addresses.
      const isName = !/^[\d.]+$|^\[/.test(name);
      return { host: host.replace(/^\[|\]$/g, ""), port, ...(isTls && isName && { servername: name }) };
    },
    secureContext: () => (context ??= trusting(caCert)),
  };
}

async function trusting(caCert: string | undefined): Promise<SecureContext | undefined> {
  if (caCert === undefined) return undefined;
  const tls = await import("node:tls");
  // Node 22.15 and newer: also includes those of NODE_EXTRA_CA_CERTS and, if Node was started so, the system's.
  const known = (tls as { getCACertificates?(): string[] }).getCACertificates?.() ?? tls.rootCertificates;
  return tls.createSecureContext({ ca: [...known, caCert] });
}
