/**
 * The credentials of a host or an edge between its starts: `ca.pem`, `key.pem`, `cert.pem` in a folder of their own,
 * 0600. `key.pem` is written first, before the part joins, because the id belongs to that key from then on, even if the
 * answer is lost. `cert.pem` is written last: if it fits the key, all three files are complete.
 */
import { createPrivateKey, X509Certificate } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import { join as joinPath } from "node:path";
import { writeDurably } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { type Credentials, requestCertificate } from "./authority.ts";
import type { Identity } from "./identity.ts";
import { isOfToken } from "./join-token.ts";
import { identityOfCertificate, lifeOf } from "./kept-credentials.ts";
import { checkGateways, join } from "./newcomer.ts";

export interface CredentialPlace {
  folder: string;
  identity: Identity;
  /** host:port of each gateway's cluster port. */
  gateways: readonly string[];
  /** The join token; empty: the part must have joined before. */
  token: string;
  nowMs: number;
}

/**
 * Returns the credentials of an earlier start if they are valid; else joins with the token and stores the new
 * credentials. Throws `failed_precondition` when all gateways that answer are of another cluster.
 */
export async function openCredentials(place: CredentialPlace): Promise<Credentials> {
  const { folder, identity, gateways, token, nowMs } = place;
  const found = await readCredentials(folder);
  const problem = found === undefined ? "there are none" : problemOf(found, place);
  if (found !== undefined && problem === undefined) {
    await checkGateways(gateways, found.ca, folder);
    return found;
  }
  if (token === "")
    throw new ClocheError(
      "failed_precondition",
      `the credentials in ${folder} cannot be used: ${problem}. Set CLOCHE_JOIN_TOKEN to what \`cloche join-token ${identity.role}\` prints on a gateway`,
    );
  const joined = await join(gateways, token, identity.id, await ownKey(folder));
  const given = identityOfCertificate(joined.cert);
  if (given?.role !== identity.role)
    throw new ClocheError(
      "failed_precondition",
      `CLOCHE_JOIN_TOKEN is for the role ${given?.role}; make one for the role ${identity.role}`,
    );
  if (lifeOf(joined.cert).untilMs <= nowMs)
    throw new ClocheError(
      "failed_precondition",
      "the certificate is over already: set this computer's clock",
    );
  await writeCredentials(folder, joined);
  return joined;
}

/** The key in the folder, or a new key, which is stored there. */
async function ownKey(folder: string): Promise<string> {
  const file = joinPath(folder, "key.pem");
  const known = await readFile(file, "utf8").catch(() => "");
  try {
    return createPrivateKey(known).export({ type: "pkcs8", format: "pem" }) as string;
  } catch {
    const { key } = await requestCertificate();
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await writeDurably(file, key, 0o600);
    return key;
  }
}

/** What is wrong with the credentials; undefined: they are valid. */
function problemOf(found: Credentials, { identity, token, nowMs }: CredentialPlace): string | undefined {
  const known = identityOfCertificate(found.cert);
  if (known?.role !== identity.role || known.id !== identity.id)
    return `they are of ${known?.role} ${known?.id}, not of ${identity.role} ${identity.id}`;
  if (lifeOf(found.cert).untilMs <= nowMs) return "their certificate is over";
  if (token !== "" && !isOfToken(token, found.ca))
    return "they are of another cluster than CLOCHE_JOIN_TOKEN";
  return undefined;
}

export async function writeCredentials(folder: string, { ca, cert, key }: Credentials): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await writeDurably(joinPath(folder, "ca.pem"), ca, 0o600);
  await writeDurably(joinPath(folder, "key.pem"), key, 0o600);
  await writeDurably(joinPath(folder, "cert.pem"), cert, 0o600);
}

/** Undefined: there are none, or they are not complete. */
async function readCredentials(folder: string): Promise<Credentials | undefined> {
  const read = async (name: string): Promise<string> =>
    await readFile(joinPath(folder, name), "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return "";
      throw error;
    });
  const [ca, cert, key] = await Promise.all(["ca.pem", "cert.pem", "key.pem"].map(read));
  if (!ca || !cert || !key) return undefined;
  try {
    return new X509Certificate(cert).checkPrivateKey(createPrivateKey(key)) ? { ca, cert, key } : undefined;
  } catch {
    return undefined;
  }
}
