/** Mutual TLS 1.3 between the parts of a cluster: both sides prove a role and an id, and names of computers do not count. */
import type { ConnectionOptions, PeerCertificate, TlsOptions } from "node:tls";
import type { Credentials } from "./authority.ts";
import { type Identity, identityIn } from "./identity.ts";

/** Whoever has no certificate of the installation is refused in the handshake; whose it is, `identityOf` says. */
export function serverSettings({ ca, cert, key }: Credentials): TlsOptions {
  return { ca, cert, key, requestCert: true, rejectUnauthorized: true, minVersion: "TLSv1.3" };
}

/**
 * Lets in whoever has no certificate too, since a newcomer has none: what is served must ask `identityOf` of each caller. The
 * authority's certificate goes with the server's own, so that a newcomer can compare it with its token.
 */
export function openServerSettings(credentials: Credentials): TlsOptions {
  const { ca, cert } = credentials;
  return { ...serverSettings(credentials), cert: `${cert}${ca}`, rejectUnauthorized: false };
}

/** `expected`: whom to reach; without an id any of the role. */
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
