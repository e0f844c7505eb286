/** Where the service listens and is reached, as its settings say. */
import { isIP } from "node:net";
import type { Config } from "@cloche/base";

type EdgeSettings = Pick<Config, "edgeHost" | "edgePort" | "edgeHttpPort" | "baseDomain">;

/** An address as it stands in a URL. */
export const shown = (address: string): string => (address.includes(":") ? `[${address}]` : address);

const isLoopback = (address: string): boolean =>
  address === "::1" || (isIP(address) === 4 && address.startsWith("127."));

/** Where the edge listens without TLS, which is never beyond this machine; undefined: nowhere. */
export function plainEdge(config: EdgeSettings): { port: number; address: string } | undefined {
  if (config.edgeHttpPort === 0) return undefined;
  return {
    port: config.edgeHttpPort,
    address: isLoopback(config.edgeHost) ? config.edgeHost : "127.0.0.1",
  };
}

/** The address of all sandboxes for who is on another computer. */
export const publicDataPlaneUrl = ({ baseDomain, edgePort }: EdgeSettings): string =>
  `https://${baseDomain}${edgePort === 443 ? "" : `:${edgePort}`}`;

/** The address of all sandboxes: one that needs neither DNS nor trust where clients are on this machine, else one for everybody. */
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
