/** The certificate that all edges of a cluster show to clients. The certificate and its authority are sealed in the database. */
import { type CertificatePair, covers, makeAuthority, makeLeaf } from "../setup/edge-certificates.ts";
import type { SharedSecrets } from "./shared-secrets.ts";

export interface SharedEdgeCertificate {
  /** PEM, with its chain. */
  certificate: string;
  key: string;
  /** PEM of the authority that clients trust. */
  authority: string;
}

/** Made by the first gateway, and renewed a month before its end. */
export async function sharedEdgeCertificate(
  secrets: SharedSecrets,
  baseDomain: string,
  nowMs: number,
): Promise<SharedEdgeCertificate> {
  const authority = parse(await secrets.keep("edge-authority", JSON.stringify(await makeAuthority(nowMs))));
  const kept = await secrets.renew(
    `edge-certificate/${baseDomain}`,
    async (text) => !(await covers(parse(text).cert, authority, baseDomain, nowMs)),
    async () => JSON.stringify(await makeLeaf(authority, baseDomain, nowMs)),
  );
  const { cert, key } = parse(kept);
  return { certificate: cert, key, authority: `${authority.cert}\n` };
}

const parse = (text: string): CertificatePair => JSON.parse(text) as CertificatePair;
