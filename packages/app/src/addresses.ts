/** The addresses of the service, made from its settings. */
import { isIP } from "node:net";
import type { Config } from "@cloche/base";

type EdgeSettings = Pick<Config, "edgeHost" | "edgePort" | "edgeHttpPort" | "baseDomain">;

/** An address in the form of a URL's host: IPv6 in brackets. */
export const shown = (address: string): string => (address.includes(":") ? `[${address}]` : address);

const isLoopback = (address: string): boolean =>
  address === "::1" || (isIP(address) === 4 && address.startsWith("127."));

/** The edge's listener without TLS, always on the loopback; undefined: none. */
export function plainEdge(config: EdgeSettings): { port: number; address: string } | undefined {
  if (config.edgeHttpPort === 0) return undefined;
  return {
    port: config.edgeHttpPort,
    address: isLoopback(config.edgeHost) ? config.edgeHost : "127.0.0.1",
  };
}

/** The one address of all sandboxes, for clients on other computers. */
export const publicDataPlaneUrl = ({ baseDomain, edgePort }: EdgeSettings): string =>
  `https://${baseDomain}${edgePort === 443 ? "" : `:${edgePort}`}`;

/** The one address of all sandboxes: without DNS and TLS if clients are on this machine, else the public one. */
export function dataPlaneUrl(config: EdgeSettings): string {
  const plain = plainEdge(config);
  if (plain !== undefined && isLoopback(config.edgeHost))
    return `http://${shown(plain.address)}:${plain.port}`;
  return publicDataPlaneUrl(config);
}

export const gatewayUrl = (config: Pick<Config, "gatewayHost" | "gatewayPort">): string =>
  `http://${shown(config.gatewayHost)}:${config.gatewayPort}`;

export const edgeUrl = (config: Pick<Config, "edgeHost" | "edgePort">): string =>
  `https://${shown(config.edgeHost)}:${config.edgePort}`;
