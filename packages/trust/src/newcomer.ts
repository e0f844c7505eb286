/**
 * How a newcomer joins a cluster: it connects to a gateway that it cannot trust yet, compares the gateway's authority
 * with the SHA-256 in the token, and only then sends the token, over a connection with a certificate of that authority.
 */
import { once } from "node:events";
import { X509Certificate } from "node:crypto";
import { connect, type DetailedPeerCertificate } from "node:tls";
import { parseAddress } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { ClusterService } from "@cloche/protocol/host-registry";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { type Credentials, requestCertificate } from "./authority.ts";
import { isOfToken } from "./join-token.ts";
import { connectWith } from "./rpc-client.ts";
import { clientSettings } from "./tls-settings.ts";

const meetMs = 5_000;
const joinMs = 15_000;

/**
 * Throws `unavailable` when no gateway answers, `unauthenticated` when a gateway refuses the token or has another
 * authority, and `already_exists` when the id belongs to another key. `key`: PEM; the same at every try, because the id
 * then belongs to it.
 */
export async function join(
  gateways: readonly string[],
  token: string,
  id: string,
  key: string,
): Promise<Credentials> {
  let away: ClocheError | undefined;
  for (const address of gateways) {
    try {
      return await joinThrough(address, token, id, key);
    } catch (thrown) {
      const error = ClocheError.from(thrown);
      if (error.code !== "unavailable") throw error;
      away = error;
    }
  }
  throw away ?? new ClocheError("failed_precondition", "no gateway is named");
}

async function joinThrough(address: string, token: string, id: string, ownKey: string): Promise<Credentials> {
  const ca = await authorityOf(address, token);
  const { key, request } = await requestCertificate(ownKey);
  // The gateway must have a certificate of this authority, as always; the newcomer has none yet.
  const {
    cert: _cert,
    key: _key,
    ...settings
  } = clientSettings({ ca, cert: "", key: "" }, { role: "gateway" });
  const connection = connectWith(address, () => settings);
  try {
    const client = createClient(ClusterService, connection.transport);
    const { certificate } = await client.join(
      { token, id, certificateRequest: request },
      { timeoutMs: joinMs },
    );
    return { ca, cert: certificate, key };
  } catch (thrown) {
    const { code, rawMessage } = ConnectError.from(thrown);
    if (code === Code.Unauthenticated)
      throw new ClocheError("unauthenticated", rawMessage, { cause: thrown });
    if (code === Code.AlreadyExists) throw new ClocheError("already_exists", rawMessage, { cause: thrown });
    if (code === Code.InvalidArgument)
      throw new ClocheError("invalid_argument", rawMessage, { cause: thrown });
    throw new ClocheError("unavailable", `the gateway at ${address} does not answer`, { cause: thrown });
  } finally {
    connection.close();
  }
}

/** The certificate of the token's authority, PEM, as the gateway sends it. */
async function authorityOf(address: string, token: string): Promise<string> {
  const ca = (await shownBy(address)).find((pem) => isOfToken(token, pem));
  if (ca !== undefined) return ca;
  throw new ClocheError(
    "unauthenticated",
    `${address} is no gateway of the cluster that the join token names: nothing was sent to it`,
  );
}

/**
 * Throws `failed_precondition` when all gateways that answer are of another cluster. Does not throw when none answers.
 * `ca`: the authority of this part's cluster, PEM.
 */
export async function checkGateways(gateways: readonly string[], ca: string, folder: string): Promise<void> {
  const own = new X509Certificate(ca).fingerprint256;
  const lookups = gateways.map(async (address) => {
    const shown = await shownBy(address).catch(() => undefined);
    return { address, isOurs: shown?.some((pem) => new X509Certificate(pem).fingerprint256 === own) };
  });
  const seen = await Promise.all(lookups);
  const others = seen.filter(({ isOurs }) => isOurs === false).map(({ address }) => address);
  if (others.length === 0 || seen.some(({ isOurs }) => isOurs === true)) return;
  throw new ClocheError(
    "failed_precondition",
    `CLOCHE_CLUSTER_GATEWAYS: ${others.join(", ")} is of another cluster than the one that this part has joined, whose ` +
      `certificates are in ${folder}: set it to host:port of that cluster's gateways. To join the other cluster, start with a ` +
      "CLOCHE_HOME of its own and a join token of that cluster",
  );
}

/** The certificates that a gateway sends. Nothing is sent to the gateway. */
async function shownBy(address: string): Promise<string[]> {
  const { host, port } = parseAddress(address);
  const socket = connect({
    host,
    port,
    rejectUnauthorized: false,
    minVersion: "TLSv1.3",
    ALPNProtocols: ["h2"],
  });
  try {
    await once(socket, "secureConnect", { signal: AbortSignal.timeout(meetMs) });
    return pemOf(socket.getPeerCertificate(true));
  } catch (cause) {
    throw new ClocheError("unavailable", `the gateway at ${address} cannot be reached`, { cause });
  } finally {
    socket.destroy();
  }
}

/** The certificates that the gateway sent, from the leaf on. */
function pemOf(leaf: DetailedPeerCertificate): string[] {
  const shown: string[] = [];
  const seen = new Set<DetailedPeerCertificate>();
  for (let at = leaf; at?.raw !== undefined && !seen.has(at); at = at.issuerCertificate) {
    seen.add(at);
    shown.push(new X509Certificate(at.raw).toString());
  }
  return shown;
}
