/** The E2B-compatible endpoint of this installation: its API key, its secret, and where the edge listens for it. */
import { randomBytes } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Config, type Log, writeDurably } from "@cloche/base";
import { createE2b, type E2bEndpoint } from "@cloche/e2b";
import type { Gateway } from "@cloche/gateway";
import { edgeUrl, gatewayUrl, plainEdge, shown } from "./addresses.ts";
import { ensureE2bKey } from "./local-team.ts";
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
  const endpoint = createE2b({
    gatewayUrl: gatewayUrl(config),
    edgeUrl: edgeUrl(config),
    caCert: await readFile(tls.caFile, "utf8"),
    baseDomain: config.baseDomain,
    edgePort: config.edgePort,
    secret: await ensureSecret(config.home),
    ownKey,
    teamOf: (apiKey) => gateway.teamOfKey(apiKey),
    log: log.child({ part: "e2b" }),
  });
  const address = plainEdge({ ...config, edgeHttpPort: config.e2bPort })?.address ?? "127.0.0.1";
  const url = `http://${shown(address)}:${config.e2bPort}`;
  const status = { api_url: url, sandbox_url: url, api_key: ownKey };
  return { endpoint, status, address: { port: config.e2bPort, address } };
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
