/**
 * A sandbox's `envdAccessToken`: the caller's API key, sealed for that one sandbox. So tokens need not be stored, and a revoked key ends its
 * tokens. The same key and sandbox give the same token, because clients sign URLs with it and the endpoint checks the signatures.
 */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync } from "node:crypto";

const nonceBytes = 12;
const tagBytes = 16;
const tokenLength = 1_024;

/** Associated data: a token is valid only for the sandbox that it was sealed for. */
const boundTo = (sandboxId: string): Buffer => Buffer.from(sandboxId);

export class AccessTokens {
  readonly #key: Buffer;
  readonly #nonceKey: Buffer;

  /** `secret`: 32 random bytes, the same after restarts. */
  constructor(secret: Uint8Array) {
    const derived = (use: string): Buffer =>
      Buffer.from(hkdfSync("sha256", secret, "", `cloche e2b ${use}`, 32));
    this.#key = derived("seal");
    this.#nonceKey = derived("nonce");
  }

  issue(apiKey: string, sandboxId: string): string {
    // A nonce derived from key and sandbox, so it is never used for another text with the same key.
    const nonce = createHmac("sha256", this.#nonceKey)
      .update(`${sandboxId}\0${apiKey}`)
      .digest()
      .subarray(0, nonceBytes);
    const cipher = createCipheriv("aes-256-gcm", this.#key, nonce).setAAD(boundTo(sandboxId));
    const sealed = Buffer.concat([cipher.update(apiKey, "utf8"), cipher.final()]);
    return Buffer.concat([nonce, cipher.getAuthTag(), sealed]).toString("base64url");
  }

  /** The API key in a token of this sandbox; undefined: not a valid token. */
  open(token: string, sandboxId: string): string | undefined {
    if (token.length > tokenLength) return undefined;
    const bytes = Buffer.from(token, "base64url");
    if (bytes.length <= nonceBytes + tagBytes) return undefined;
    const decipher = createDecipheriv("aes-256-gcm", this.#key, bytes.subarray(0, nonceBytes), {
      authTagLength: tagBytes,
    });
    decipher.setAAD(boundTo(sandboxId)).setAuthTag(bytes.subarray(nonceBytes, nonceBytes + tagBytes));
    try {
      const opened = decipher.update(bytes.subarray(nonceBytes + tagBytes), undefined, "utf8");
      return opened + decipher.final("utf8");
    } catch {
      return undefined;
    }
  }
}
