import type { SecureContext } from "node:tls";
import type { NodeFetchOptions } from "./node-connection.ts";

/** Where a connection for a URL goes, and whom it trusts. */
export interface NodeRoute {
  to(url: URL): { host: string; port: string; servername?: string };
  /** Made once: reading all authorities takes ten milliseconds. Undefined: Node's own default. */
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
      // Few name servers know the names below .localhost, which are this machine's (RFC 6761).
      const host = isSandbox ? edge.hostname : name.endsWith(".localhost") ? "127.0.0.1" : url.hostname;
      const port = (isSandbox ? edge : url).port || (isTls ? "443" : "80");
      // An address is no name to ask for.
      const isName = !/^[\d.]+$|^\[/.test(name);
      return { host: host.replace(/^\[|\]$/g, ""), port, ...(isTls && isName && { servername: name }) };
    },
    secureContext: () => (context ??= trusting(caCert)),
  };
}

async function trusting(caCert: string | undefined): Promise<SecureContext | undefined> {
  if (caCert === undefined) return undefined;
  const tls = await import("node:tls");
  // Node 22.15 and newer: with those of NODE_EXTRA_CA_CERTS and the system, as Node was told.
  const known = (tls as { getCACertificates?(): string[] }).getCACertificates?.() ?? tls.rootCertificates;
  return tls.createSecureContext({ ca: [...known, caCert] });
}
