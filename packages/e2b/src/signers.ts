/**
 * Which tokens may have signed a URL that names no sandbox. Everybody can have such a URL checked, so the search is
 * bounded: `tokensMax` tokens, made once when their key was used for the sandbox, and none are made for a search.
 */
export interface Signer {
  readonly sandboxId: string;
  readonly apiKey: string;
  readonly token: string;
}

const tokensMax = 1_000;
const keysOfSandbox = 4;

export class Signers {
  /** By sandbox and key; the newest last. */
  readonly #known = new Map<string, Map<string, Signer>>();
  readonly #countOf = new Map<string, number>();
  readonly #max: number;
  #count = 0;

  constructor(max = tokensMax) {
    this.#max = max;
  }

  get size(): number {
    return this.#count;
  }

  /** Notes a key that was used for a sandbox. When there are too many, the key with the most loses its oldest. */
  add(sandboxId: string, apiKey: string, tokenOf: () => string): void {
    const keys = this.#known.get(sandboxId);
    if (keys?.has(apiKey) === true) return;
    const oldest = keys !== undefined && keys.size >= keysOfSandbox ? keys.keys().next().value : undefined;
    if (oldest !== undefined) this.#drop(sandboxId, oldest);
    const kept = this.#known.get(sandboxId) ?? new Map<string, Signer>();
    kept.set(apiKey, { sandboxId, apiKey, token: tokenOf() });
    this.#known.set(sandboxId, kept);
    this.#countOf.set(apiKey, (this.#countOf.get(apiKey) ?? 0) + 1);
    this.#count += 1;
    if (this.#count > this.#max) this.#dropOfLargest();
  }

  /** Of that sandbox, or of all. */
  *all(sandboxId?: string): Generator<Signer> {
    const found = sandboxId === undefined ? this.#known.values() : [this.#known.get(sandboxId) ?? new Map()];
    for (const keys of found) yield* keys.values();
  }

  forget(sandboxId: string): void {
    for (const apiKey of this.#known.get(sandboxId)?.keys() ?? []) this.#drop(sandboxId, apiKey);
  }

  #dropOfLargest(): void {
    let largest = "";
    let most = 0;
    for (const [apiKey, count] of this.#countOf) if (count > most) [largest, most] = [apiKey, count];
    for (const [sandboxId, keys] of this.#known) if (keys.has(largest)) return this.#drop(sandboxId, largest);
  }

  #drop(sandboxId: string, apiKey: string): void {
    const keys = this.#known.get(sandboxId);
    if (keys?.delete(apiKey) !== true) return;
    if (keys.size === 0) this.#known.delete(sandboxId);
    this.#count -= 1;
    const left = (this.#countOf.get(apiKey) ?? 1) - 1;
    if (left === 0) this.#countOf.delete(apiKey);
    else this.#countOf.set(apiKey, left);
  }
}
