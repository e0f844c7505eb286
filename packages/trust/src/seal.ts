/** Secrets of the installation as they lie in the database: AES-256-GCM under a key that the database never sees. */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";

const ivBytes = 12;
const tagBytes = 16;
/** The least that the operator's secret must have. */
const secretBytesMin = 32;

/** A key for one purpose. Throws for a secret that is too short to be one. */
export function derivedKey(secret: Uint8Array, purpose: string): Buffer {
  if (secret.byteLength < secretBytesMin)
    throw new Error(`the cluster's secret must have at least ${secretBytesMin} bytes`);
  return Buffer.from(hkdfSync("sha256", secret, "", `cloche ${purpose}`, 32));
}

/** Base64. `name` is bound: what is sealed for one name opens for no other. */
export function seal(secret: Uint8Array, name: string, plain: string): string {
  const iv = randomBytes(ivBytes);
  const cipher = createCipheriv("aes-256-gcm", derivedKey(secret, "seal"), iv);
  cipher.setAAD(Buffer.from(name));
  const sealed = Buffer.concat([cipher.update(plain, "utf8"), cipher.final()]);
  return Buffer.concat([iv, cipher.getAuthTag(), sealed]).toString("base64");
}

/** Throws when the secret or the name is another, or a bit is. */
export function unseal(secret: Uint8Array, name: string, sealed: string): string {
  const bytes = Buffer.from(sealed, "base64");
  const decipher = createDecipheriv("aes-256-gcm", derivedKey(secret, "seal"), bytes.subarray(0, ivBytes), {
    authTagLength: tagBytes,
  });
  decipher.setAAD(Buffer.from(name));
  decipher.setAuthTag(bytes.subarray(ivBytes, ivBytes + tagBytes));
  try {
    const plain = [decipher.update(bytes.subarray(ivBytes + tagBytes)), decipher.final()];
    return Buffer.concat(plain).toString("utf8");
  } catch (cause) {
    throw new Error(`${name} was sealed with another secret, or is damaged`, { cause });
  }
}
