/**
 * The local certificate authority and the edge's wildcard certificate. Owns `<home>/tls`: `ca.pem` (public, what clients
 * trust), `ca-key.pem`, `edge.pem`, `edge-key.pem`. A certificate that covers another base domain, lacks the loopback's names or ends soon
 * is made anew; the authority itself is kept, so clients that trust it go on. An operator's own certificate can stand in `edge.pem`: it needs
 * no names of the loopback.
 */
import "reflect-metadata"; // x509 needs it loaded first
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { webcrypto } from "node:crypto";
import { writeDurably } from "@cloche/base";
import * as x509 from "@peculiar/x509";

const dayMs = 86_400_000;
/** So that a client on this machine needs no name of its own for the edge. */
const loopbackNames: x509.JsonGeneralNames = [
  { type: "dns", value: "localhost" },
  { type: "ip", value: "127.0.0.1" },
  { type: "ip", value: "::1" },
];
const keyAlgorithm = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;

export interface EdgeCertificate {
  caFile: string;
  /** Leaf and authority, PEM. */
  cert: string;
  key: string;
}

x509.cryptoProvider.set(webcrypto as unknown as Crypto);

export async function ensureAuthority(
  home: string,
  baseDomain: string,
  nowMs: number,
): Promise<EdgeCertificate> {
  const folder = join(home, "tls");
  await mkdir(folder, { recursive: true, mode: 0o755 });
  const caFile = join(folder, "ca.pem");
  const ca = (await loadAuthority(folder)) ?? (await makeAuthority(folder, nowMs));
  const existing = await readPair(folder, "edge");
  if (existing !== undefined && (await covers(existing.cert, ca, baseDomain, nowMs)))
    return { caFile, ...existing };
  return { caFile, ...(await makeLeaf(folder, ca, baseDomain, nowMs)) };
}

interface Authority {
  cert: x509.X509Certificate;
  key: CryptoKey;
}

async function loadAuthority(folder: string): Promise<Authority | undefined> {
  const pair = await readPair(folder, "ca");
  if (pair === undefined) return undefined;
  const der = x509.PemConverter.decodeFirst(pair.key);
  const key = await webcrypto.subtle.importKey("pkcs8", der, keyAlgorithm, true, ["sign"]);
  return { cert: new x509.X509Certificate(pair.cert), key: key as CryptoKey };
}

async function makeAuthority(folder: string, nowMs: number): Promise<Authority> {
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
  await writePair(folder, "ca", cert.toString("pem"), keys.privateKey as CryptoKey);
  return { cert, key: keys.privateKey as CryptoKey };
}

async function makeLeaf(
  folder: string,
  ca: Authority,
  baseDomain: string,
  nowMs: number,
): Promise<{ cert: string; key: string }> {
  const keys = await webcrypto.subtle.generateKey(keyAlgorithm, true, ["sign", "verify"]);
  const leaf = await x509.X509CertificateGenerator.create({
    serialNumber: serialNumber(),
    subject: `CN=*.${baseDomain}`.slice(0, 67),
    issuer: ca.cert.subject,
    notBefore: new Date(nowMs - dayMs),
    notAfter: new Date(Math.min(nowMs + 397 * dayMs, ca.cert.notAfter.getTime())),
    signingAlgorithm: keyAlgorithm,
    publicKey: keys.publicKey as CryptoKey,
    signingKey: ca.key,
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
      new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth]),
      new x509.SubjectAlternativeNameExtension([
        { type: "dns", value: `*.${baseDomain}` },
        { type: "dns", value: baseDomain },
        ...loopbackNames,
      ]),
      await x509.AuthorityKeyIdentifierExtension.create(ca.cert),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey as CryptoKey),
    ],
  });
  const cert = `${leaf.toString("pem")}\n${ca.cert.toString("pem")}\n`;
  const key = await writePair(folder, "edge", cert, keys.privateKey as CryptoKey);
  return { cert, key };
}

async function covers(certPem: string, ca: Authority, baseDomain: string, nowMs: number): Promise<boolean> {
  const cert = new x509.X509Certificate(certPem);
  const names = new Set(
    cert.getExtension(x509.SubjectAlternativeNameExtension)?.names.items.map((name) => name.value),
  );
  if (!names.has(`*.${baseDomain}`) || cert.notAfter.getTime() <= nowMs + 30 * dayMs) return false;
  const hasLoopback = loopbackNames.every(({ value }) => names.has(value));
  return hasLoopback || !(await cert.verify({ publicKey: ca.cert, signatureOnly: true }));
}

async function readPair(folder: string, name: string): Promise<{ cert: string; key: string } | undefined> {
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

async function writePair(folder: string, name: string, cert: string, privateKey: CryptoKey): Promise<string> {
  const der = await webcrypto.subtle.exportKey("pkcs8", privateKey);
  const key = `${x509.PemConverter.encode(der, "PRIVATE KEY")}\n`;
  // The key first: a pair whose certificate exists is whole.
  await writeDurably(join(folder, `${name}-key.pem`), key, 0o600);
  await writeDurably(join(folder, `${name}.pem`), cert, 0o644);
  return key;
}

function serialNumber(): string {
  const bytes = webcrypto.getRandomValues(new Uint8Array(16));
  bytes[0] = (bytes[0] ?? 0) & 0x7f;
  return Buffer.from(bytes).toString("hex");
}
