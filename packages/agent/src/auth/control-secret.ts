import { createHash, timingSafeEqual } from "node:crypto";

/** Authorises the host on GuestService. Only the secret's SHA-256 is kept, so the agent's memory does not give it away. */
export class ControlSecret {
  #sha256: Buffer;

  constructor(sha256Hex: string) {
    this.#sha256 = Buffer.from(sha256Hex, "hex");
  }

  replace(secret: string): void {
    this.#sha256 = sha256(secret);
  }

  matches(secret: string): boolean {
    return timingSafeEqual(sha256(secret), this.#sha256);
  }
}

const sha256 = (text: string): Buffer => createHash("sha256").update(text, "utf8").digest();
