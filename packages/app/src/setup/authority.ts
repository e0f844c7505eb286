/**
 * The local certificate authority and the edge's wildcard certificate. Owns `<home>/tls`: `ca.pem` (public, what clients
 * trust), `ca-key.pem`, `edge.pem`, `edge-key.pem`. A certificate that covers another base domain, lacks the loopback's names or ends soon
 * is made anew; the authority itself is kept, so clients that trust it go on. An operator's own certificate can stand in `edge.pem`: it needs
 * no names of the loopback.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { writeDurably } from "@cloche/base";
import { type CertificatePair, covers, makeAuthority, makeLeaf } from "./edge-certificates.ts";

export interface EdgeCertificate {
  caFile: string;
  /** Leaf and authority, PEM. */
  cert: string;
  key: string;
}

export async function ensureAuthority(
  home: string,
  baseDomain: string,
  nowMs: number,
): Promise<EdgeCertificate> {
  const folder = join(home, "tls");
  await mkdir(folder, { recursive: true, mode: 0o755 });
  const caFile = join(folder, "ca.pem");
  const ca = (await readPair(folder, "ca")) ?? (await writePair(folder, "ca", await makeAuthority(nowMs)));
  const existing = await readPair(folder, "edge");
  if (existing !== undefined && (await covers(existing.cert, ca, baseDomain, nowMs)))
    return { caFile, ...existing };
  return { caFile, ...(await writePair(folder, "edge", await makeLeaf(ca, baseDomain, nowMs))) };
}

/** `<name>.pem` and `<name>-key.pem`; undefined: not both are there. */
export async function readPair(folder: string, name: string): Promise<CertificatePair | undefined> {
  try {
    const [cert, key] = await Promise.all([
      readFile(join(folder, `${name}.pem`), "utf8"),
      readFile(join(folder, `${name}-key.pem`), "utf8"),
    ]);
    return { cert, key };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

async function writePair(folder: string, name: string, pair: CertificatePair): Promise<CertificatePair> {
  // The key first: a pair whose certificate exists is whole.
  await writeDurably(join(folder, `${name}-key.pem`), pair.key, 0o600);
  await writeDurably(join(folder, `${name}.pem`), pair.cert, 0o644);
  return pair;
}
