/**
 * The local certificate authority and the edge's wildcard certificate. Owns `<home>/tls`: `ca.pem` (public, what clients
 * trust), `ca-key.pem`, `edge.pem`, `edge-key.pem`. A certificate for another base domain, without the loopback's names, or near its end
 * is made again. The authority is kept, so clients need not change. An operator may put another certificate into `edge.pem`, which
 * needs no names of the loopback.
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

/** Reads `<name>.pem` and `<name>-key.pem`; undefined if one is missing. */
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
  // The key is written first, so a pair whose certificate exists is complete.
  await writeDurably(join(folder, `${name}-key.pem`), pair.key, 0o600);
  await writeDurably(join(folder, `${name}.pem`), pair.cert, 0o644);
  return pair;
}
