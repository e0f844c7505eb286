/**
 * Sealed secrets of the installation, as stored in the database: AES-256-GCM under a key that is never in the database.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";

const ivBytes = 12;
const tagBytes = 16;
/** Least length of the operator's secret. */
const secretBytesMin = 32;

/** Derives a key for one purpose. Throws when the secret is too short. */
export function derivedKey(secret: Uint8Array, purpose: string): Buffer {
  if (secret.byteLength < secretBytesMin)
    throw new Error(`the cluster's secret must have at least ${secretBytesMin} bytes`);
  return Buffer.from(hkdfSync("sha256", secret, "", `cloche ${purpose}`, 32));
}

/** Returns base64. `name` is bound in: a value sealed for one name cannot be opened for another. */
export function seal(secret: Uint8Array, name: string, plain: string): string {
  const iv = randomBytes(ivBytes);
  const cipher = createCipheriv("aes-256-gcm", derivedKey(secret, "seal"), iv);
  cipher.setAAD(Buffer.from(name));
  const sealed = Buffer.concat([cipher.update(plain, "utf8"), cipher.final()]);
  return Buffer.concat([iv, cipher.getAuthTag(), sealed]).toString("base64");
}

/** Throws when the secret or the name differs, or the value was changed. */
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
