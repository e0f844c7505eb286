/**
 * A sandbox's `envdAccessToken`: the API key it was asked for with, sealed for that one sandbox, so that nothing needs to be remembered
 * and a revoked key ends its tokens. The same key and sandbox give the same token: clients sign URLs with it, which is checked against it.
 */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync } from "node:crypto";

const nonceBytes = 12;
const tagBytes = 16;
const tokenLength = 1_024;

/** A token opens what it was sealed for, nothing else. */
const boundTo = (sandboxId: string): Buffer => Buffer.from(sandboxId);

export class AccessTokens {
  readonly #key: Buffer;
  readonly #nonceKey: Buffer;

  /** `secret`: 32 random bytes that stay the same over restarts. */
  constructor(secret: Uint8Array) {
    const derived = (use: string): Buffer =>
      Buffer.from(hkdfSync("sha256", secret, "", `cloche e2b ${use}`, 32));
    this.#key = derived("seal");
    this.#nonceKey = derived("nonce");
  }

  issue(apiKey: string, sandboxId: string): string {
    // One for each pair, so it never meets another text under the same key.
    const nonce = createHmac("sha256", this.#nonceKey)
      .update(`${sandboxId}\0${apiKey}`)
      .digest()
      .subarray(0, nonceBytes);
    const cipher = createCipheriv("aes-256-gcm", this.#key, nonce).setAAD(boundTo(sandboxId));
    const sealed = Buffer.concat([cipher.update(apiKey, "utf8"), cipher.final()]);
    return Buffer.concat([nonce, cipher.getAuthTag(), sealed]).toString("base64url");
  }

  /** The API key in a token of this sandbox; undefined: it is none. */
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
