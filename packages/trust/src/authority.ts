/**
 * The installation's own certificate authority, one for all its gateways. Its key is sealed in the database, where the
 * very first gateway puts it. It signs certificates for a role and an id that its caller has decided; of a request only
 * the key counts.
 */
import "reflect-metadata"; // x509 needs it loaded first
import { createHash, createPrivateKey, createPublicKey, webcrypto } from "node:crypto";
import * as x509 from "@peculiar/x509";
import { type Identity, uriOf } from "./identity.ts";
import { seal, unseal } from "./seal.ts";

const dayMs = 86_400_000;
const authorityDays = 3_650;
/** Certificates begin this long ago, so that a clock that is a little behind accepts a new one. */
const backdateMs = 300_000;
export const certificateMs = 7 * dayMs;
const name = "cluster-authority";
const keyAlgorithm = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;

x509.cryptoProvider.set(webcrypto as unknown as Crypto);

/** What a part needs for mutual TLS; PEM. */
export interface Credentials {
  ca: string;
  cert: string;
  key: string;
}

/** Returns the value of the name from now on: `value`, or another one that was there first. */
export type KeepOnce = (name: string, value: string) => Promise<string>;

export class Authority {
  /** PEM; every part trusts this certificate. */
  readonly certificate: string;
  readonly #cert: x509.X509Certificate;
  readonly #key: CryptoKey;

  private constructor(cert: x509.X509Certificate, key: CryptoKey) {
    this.#cert = cert;
    this.#key = key;
    this.certificate = `${cert.toString("pem")}\n`;
  }

  /** `secret`: the operator's, the same for all gateways. Throws if the authority was sealed with another. */
  static async open(keep: KeepOnce, secret: Uint8Array, nowMs: number): Promise<Authority> {
    const sealed = await keep(name, seal(secret, name, await newAuthority(nowMs)));
    const [cert = "", key = ""] = JSON.parse(unseal(secret, name, sealed)) as string[];
    const imported = await webcrypto.subtle.importKey(
      "pkcs8",
      Buffer.from(key, "base64"),
      keyAlgorithm,
      false,
      ["sign"],
    );
    return new Authority(new x509.X509Certificate(cert), imported as CryptoKey);
  }

  /** Issues a certificate (PEM) for a week. `request`: PKCS#10, PEM. Throws if it is not signed with its own key. */
  async issue(identity: Identity, request: string, nowMs: number): Promise<string> {
    const asked = await checkRequest(request);
    const cert = await x509.X509CertificateGenerator.create({
      serialNumber: serialNumber(),
      subject: `CN=cloche ${identity.role} ${identity.id}`.slice(0, 67),
      issuer: this.#cert.subject,
      notBefore: new Date(nowMs - backdateMs),
      notAfter: new Date(nowMs + certificateMs),
      signingAlgorithm: keyAlgorithm,
      publicKey: asked.publicKey,
      signingKey: this.#key,
      extensions: [
        new x509.BasicConstraintsExtension(false, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
        new x509.ExtendedKeyUsageExtension([
          x509.ExtendedKeyUsage.serverAuth,
          x509.ExtendedKeyUsage.clientAuth,
        ]),
        new x509.SubjectAlternativeNameExtension([{ type: "url", value: uriOf(identity) }]),
        await x509.AuthorityKeyIdentifierExtension.create(this.#cert),
      ],
    });
    return `${cert.toString("pem")}\n`;
  }
}

/** Parses a request. Throws, saying what is wrong, if it is not PKCS#10 or not signed with its own key. */
export async function checkRequest(request: string): Promise<x509.Pkcs10CertificateRequest> {
  let asked: x509.Pkcs10CertificateRequest;
  try {
    asked = new x509.Pkcs10CertificateRequest(request);
  } catch (cause) {
    throw new Error("the request is no PKCS#10 in PEM", { cause });
  }
  if (await asked.verify()) return asked;
  throw new Error("the request is not signed with its own key");
}

/**
 * Makes a key, which stays with the caller, and a request for the authority; PEM. `known`: an existing key to use, for
 * the renewal of a certificate.
 */
export async function requestCertificate(known?: string): Promise<{ key: string; request: string }> {
  const keys = known === undefined ? await newKeys() : await keysOf(known);
  const request = await x509.Pkcs10CertificateRequestGenerator.create({
    name: "CN=cloche",
    keys,
    signingAlgorithm: keyAlgorithm,
  });
  const der = await webcrypto.subtle.exportKey("pkcs8", keys.privateKey);
  return { key: `${x509.PemConverter.encode(der, "PRIVATE KEY")}\n`, request: request.toString("pem") };
}

/** SHA-256 of the public key of a request, hex: identifies who asks. */
export async function keyOfRequest(request: string): Promise<string> {
  const { publicKey } = await checkRequest(request);
  return createHash("sha256").update(Buffer.from(publicKey.rawData)).digest("hex");
}

/** JSON of certificate (PEM) and key (PKCS#8, base64). */
async function newAuthority(nowMs: number): Promise<string> {
  const keys = await newKeys();
  const cert = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    name: `CN=Cloche cluster authority ${serialNumber().slice(0, 8)}`,
    notBefore: new Date(nowMs - backdateMs),
    notAfter: new Date(nowMs + authorityDays * dayMs),
    signingAlgorithm: keyAlgorithm,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const der = await webcrypto.subtle.exportKey("pkcs8", keys.privateKey);
  return JSON.stringify([cert.toString("pem"), Buffer.from(der).toString("base64")]);
}

/** The key pair of a private key in PEM. */
async function keysOf(pem: string): Promise<CryptoKeyPair> {
  const der = createPrivateKey(pem).export({ type: "pkcs8", format: "der" });
  const spki = createPublicKey(pem).export({ type: "spki", format: "der" });
  const { subtle } = webcrypto;
  return {
    privateKey: await subtle.importKey("pkcs8", der, keyAlgorithm, true, ["sign"]),
    publicKey: await subtle.importKey("spki", spki, keyAlgorithm, true, ["verify"]),
  } as CryptoKeyPair;
}

const newKeys = async (): Promise<CryptoKeyPair> =>
  (await webcrypto.subtle.generateKey(keyAlgorithm, true, ["sign", "verify"])) as CryptoKeyPair;

function serialNumber(): string {
  const bytes = webcrypto.getRandomValues(new Uint8Array(16));
  bytes[0] = ((bytes[0] ?? 0) & 0x7f) | 0x40;
  return Buffer.from(bytes).toString("hex");
}
