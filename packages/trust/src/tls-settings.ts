/**
 * Mutual TLS 1.3 between the parts of a cluster: both sides prove a role and an id; names of computers are not checked.
 */
import type { ConnectionOptions, PeerCertificate, TlsOptions } from "node:tls";
import type { Credentials } from "./authority.ts";
import { type Identity, identityIn } from "./identity.ts";

/** The handshake refuses callers without a certificate of the installation; `identityOf` tells whose it is. */
export function serverSettings({ ca, cert, key }: Credentials): TlsOptions {
  return { ca, cert, key, requestCert: true, rejectUnauthorized: true, minVersion: "TLSv1.3" };
}

/**
 * Also admits callers without a certificate, because a newcomer has none: handlers must check `identityOf` for each
 * caller. The server sends the authority's certificate with its own, so that a newcomer can compare it with its token.
 */
export function openServerSettings(credentials: Credentials): TlsOptions {
  const { ca, cert } = credentials;
  return { ...serverSettings(credentials), cert: `${cert}${ca}`, rejectUnauthorized: false };
}

/** `expected`: the identity to reach; without an id, any part of the role. */
export function clientSettings(
  { ca, cert, key }: Credentials,
  expected: Pick<Identity, "role"> & Partial<Identity>,
): ConnectionOptions {
  return {
    ca,
    cert,
    key,
    minVersion: "TLSv1.3",
    checkServerIdentity: (_name: string, { subjectaltname }: PeerCertificate) => {
      const found = identityIn(subjectaltname);
      if (found?.role === expected.role && (expected.id ?? found.id) === found.id) return undefined;
      const seen = found === undefined ? "no part of the installation" : `${found.role} ${found.id}`;
      return new Error(`expected ${expected.role} ${expected.id ?? ""}, reached ${seen}`);
    },
  };
}
