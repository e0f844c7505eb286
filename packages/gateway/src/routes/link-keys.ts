import { createHmac } from "node:crypto";

const label = "cloche file links 1";

/**
 * The key that signs links to a sandbox's files. It is derived from the installation's secret and the sandbox's id, so
 * it stays the same through suspend, resume and restore, and each fork has another key. Edges get it with the route; no
 * host and nothing inside a sandbox has it.
 */
export class LinkKeys {
  static readonly secretBytes = 32;
  #secret: Uint8Array | undefined;

  set secret(secret: Uint8Array) {
    this.#secret = secret;
  }

  of(sandboxId: string): Uint8Array {
    if (this.#secret === undefined) throw new Error("the gateway has not started");
    return createHmac("sha256", this.#secret).update(`${label}\0${sandboxId}`).digest();
  }
}
