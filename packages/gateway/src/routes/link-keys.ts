import { createHmac } from "node:crypto";

const word = "cloche file links 1";

/**
 * The key that signs the links to one sandbox's files. It is made of the installation's secret and the sandbox's id, so it is the same
 * for as long as the sandbox lives, through suspend, resume and restore, and another one for each of its forks. Edges get it with the
 * route; no host and nothing inside a sandbox has it.
 */
export class LinkKeys {
  static readonly secretBytes = 32;
  #secret: Uint8Array | undefined;

  set secret(secret: Uint8Array) {
    this.#secret = secret;
  }

  of(sandboxId: string): Uint8Array {
    if (this.#secret === undefined) throw new Error("the gateway has not started");
    return createHmac("sha256", this.#secret).update(`${word}\0${sandboxId}`).digest();
  }
}
