/**
 * The keys that verify data plane tokens, as the gateway last sent them. Kept for machines that are adopted before the gateway
 * sends them again. Owns <pool>/verification-keys.json.
 */
import { join } from "node:path";
import { type KeySet, readJsonFile, writeDurably } from "@cloche/base";

export class VerificationKeys {
  readonly #path: string;
  #current: KeySet = { issuer: "", keys: [] };

  constructor(poolDir: string) {
    this.#path = join(poolDir, "verification-keys.json");
  }

  get current(): KeySet {
    return this.#current;
  }

  async load(): Promise<void> {
    const known = (await readJsonFile(this.#path)) as KeySet | undefined;
    if (known) this.#current = known;
  }

  async set(keys: KeySet): Promise<void> {
    this.#current = keys;
    await writeDurably(this.#path, JSON.stringify(keys));
  }
}
