/** Makes the authority that clients of edges trust, and its wildcard certificate for a base domain. Pure: callers store them. */
import "reflect-metadata"; // x509 needs it loaded first
import { webcrypto } from "node:crypto";
import * as x509 from "@peculiar/x509";

const dayMs = 86_400_000;
/** With these names a client on this machine can reach the edge without DNS. */
const loopbackNames: x509.JsonGeneralNames = [
  { type: "dns", value: "localhost" },
  { type: "ip", value: "127.0.0.1" },
  { type: "ip", value: "::1" },
];
const keyAlgorithm = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;

/** PEM. */
export interface CertificatePair {
  /** With its chain. */
  cert: string;
  key: string;
}

x509.cryptoProvider.set(webcrypto as unknown as Crypto);

export async function makeAuthority(nowMs: number): Promise<CertificatePair> {
  const keys = await webcrypto.subtle.generateKey(keyAlgorithm, true, ["sign", "verify"]);
  const cert = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    name: `CN=Cloche local authority ${serialNumber().slice(0, 8)}`,
    notBefore: new Date(nowMs - dayMs),
    notAfter: new Date(nowMs + 3_650 * dayMs),
    signingAlgorithm: keyAlgorithm,
    keys: keys as CryptoKeyPair,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey as CryptoKey),
    ],
  });
  return { cert: cert.toString("pem"), key: await pemOf(keys.privateKey as CryptoKey) };
}

/** Makes a certificate for `*.<base domain>`, the base domain and the loopback. */
export async function makeLeaf(
  authority: CertificatePair,
  baseDomain: string,
  nowMs: number,
): Promise<CertificatePair> {
  const ca = new x509.X509Certificate(authority.cert);
  const der = x509.PemConverter.decodeFirst(authority.key);
  const signingKey = await webcrypto.subtle.importKey("pkcs8", der, keyAlgorithm, true, ["sign"]);
  const keys = await webcrypto.subtle.generateKey(keyAlgorithm, true, ["sign", "verify"]);
  const leaf = await x509.X509CertificateGenerator.create({
    serialNumber: serialNumber(),
    subject: `CN=*.${baseDomain}`.slice(0, 67),
    issuer: ca.subject,
    notBefore: new Date(nowMs - dayMs),
    notAfter: new Date(Math.min(nowMs + 397 * dayMs, ca.notAfter.getTime())),
    signingAlgorithm: keyAlgorithm,
    publicKey: keys.publicKey as CryptoKey,
    signingKey: signingKey as CryptoKey,
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
      new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth]),
      new x509.SubjectAlternativeNameExtension([
        { type: "dns", value: `*.${baseDomain}` },
        { type: "dns", value: baseDomain },
        ...loopbackNames,
      ]),
      await x509.AuthorityKeyIdentifierExtension.create(ca),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey as CryptoKey),
    ],
  });
  const cert = `${leaf.toString("pem")}\n${ca.toString("pem")}\n`;
  return { cert, key: await pemOf(keys.privateKey as CryptoKey) };
}

/** Whether the certificate is still valid for that domain. A certificate of another authority needs no names of the loopback. */
export async function covers(
  certPem: string,
  authority: CertificatePair,
  baseDomain: string,
  nowMs: number,
): Promise<boolean> {
  const cert = new x509.X509Certificate(certPem);
  const names = new Set(
    cert.getExtension(x509.SubjectAlternativeNameExtension)?.names.items.map((name) => name.value),
  );
  if (!names.has(`*.${baseDomain}`) || cert.notAfter.getTime() <= nowMs + 30 * dayMs) return false;
  const hasLoopback = loopbackNames.every(({ value }) => names.has(value));
  const publicKey = new x509.X509Certificate(authority.cert);
  return hasLoopback || !(await cert.verify({ publicKey, signatureOnly: true }));
}

async function pemOf(privateKey: CryptoKey): Promise<string> {
  const der = await webcrypto.subtle.exportKey("pkcs8", privateKey);
  return `${x509.PemConverter.encode(der, "PRIVATE KEY")}\n`;
}

function serialNumber(): string {
  const bytes = webcrypto.getRandomValues(new Uint8Array(16));
  bytes[0] = (bytes[0] ?? 0) & 0x7f;
  return Buffer.from(bytes).toString("hex");
}
