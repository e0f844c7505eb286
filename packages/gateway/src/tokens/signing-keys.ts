import { createPrivateKey, createPublicKey, type KeyObject } from "node:crypto";
import type { VerificationKey } from "@cloche/protocol";

/** An RSA private key (PEM, PKCS#8) as the composition root keeps it. */
export interface SigningKey {
  kid: string;
  privateKeyPem: string;
}

export interface LoadedKeys {
  signing: { kid: string; key: KeyObject };
  /** Public halves of all keys, newest first. */
  verification: VerificationKey[];
}

const modulusBits = 2_048;

/** `keys`: newest first; the first signs, all verify. Throws without a key, and for a key below RSA of 2,048 bits. */
export function loadSigningKeys(keys: readonly SigningKey[]): LoadedKeys {
  const loaded = keys.map(({ kid, privateKeyPem }) => ({ kid, key: createPrivateKey(privateKeyPem) }));
  const [signing] = loaded;
  if (signing === undefined) throw new Error("no signing key: tokens cannot be issued");
  for (const { kid, key } of loaded) {
    const bits = key.asymmetricKeyDetails?.modulusLength ?? 0;
    if (key.asymmetricKeyType !== "rsa" || bits < modulusBits) {
      throw new Error(`signing key ${kid} must be RSA of ${modulusBits} bits or more`);
    }
  }
  return { signing, verification: loaded.map(({ kid, key }) => ({ kid, jwk: publicJwk(key) })) };
}

function publicJwk(key: KeyObject): VerificationKey["jwk"] {
  const { kty, n, e } = createPublicKey(key).export({ format: "jwk" });
  if (kty === undefined || n === undefined || e === undefined) throw new Error("not an RSA key");
  return { kty, n, e };
}
