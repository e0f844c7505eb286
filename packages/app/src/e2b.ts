/** The E2B-compatible endpoint of this installation: its API key, its secret, and where the edge listens for it. */
import { randomBytes } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Config, type Log, writeDurably } from "@cloche/base";
import { createE2b, type E2bEndpoint } from "@cloche/e2b";
import type { Gateway } from "@cloche/gateway";
import { edgeUrl, gatewayUrl, plainEdge, shown } from "./addresses.ts";
import { ensureE2bKey } from "./local-team.ts";
import type { McpNeeds } from "./mcp-endpoint.ts";
import type { ServiceStatus } from "./status-file.ts";

export interface LocalE2b {
  endpoint: E2bEndpoint;
  status: NonNullable<ServiceStatus["e2b"]>;
  /** Always on the loopback, because the endpoint has no TLS there. */
  address: { port: number; address: string };
}

const secretBytes = 32;

/** Undefined if the endpoint is switched off. */
export async function prepareE2b(
  config: Config,
  gateway: Gateway,
  tls: { caFile: string },
  log: Log,
): Promise<LocalE2b | undefined> {
  if (config.e2bPort === 0) return undefined;
  const ownKey = await ensureE2bKey(config.home, gateway, log);
  const caCert = await readFile(tls.caFile, "utf8");
  const secret = await ensureSecret(config.home);
  const address = plainEdge({ ...config, edgeHttpPort: config.e2bPort })?.address ?? "127.0.0.1";
  const needs = { gateway, edgeUrl: edgeUrl(config), caCert, secret, ownKey, address };
  return { ...makeE2b(config, needs, log), address: { port: config.e2bPort, address } };
}

export interface E2bNeeds extends McpNeeds {
  secret: Uint8Array;
  ownKey: string;
  /** Where clients find it. */
  address: string;
}

export function makeE2b(config: Config, needs: E2bNeeds, log: Log): Omit<LocalE2b, "address"> {
  const { gateway, address, ...given } = needs;
  const endpoint = createE2b({
    ...given,
    gatewayUrl: gatewayUrl(config),
    baseDomain: config.baseDomain,
    edgePort: config.edgePort,
    teamOf: (apiKey) => gateway.teamOfKey(apiKey),
    log: log.child({ part: "e2b" }),
  });
  const url = `http://${shown(address)}:${config.e2bPort}`;
  return { endpoint, status: { api_url: url, sandbox_url: url, api_key: needs.ownKey } };
}

/** The secret seals the tokens of sandboxes: a new secret makes the tokens that clients hold invalid. */
async function ensureSecret(home: string): Promise<Buffer> {
  const file = join(home, "keys", "e2b_secret");
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  const kept = Buffer.from(text.trim(), "hex");
  if (kept.length === secretBytes) return kept;
  const secret = randomBytes(secretBytes);
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(file, `${secret.toString("hex")}\n`, 0o600);
  return secret;
}
