/** Where the keys that sign data plane tokens are kept: files of a home (signing-keys.ts), or the database of a cluster's gateways. */

export interface SigningKeyFile {
  kid: string;
  privateKeyPem: string;
}

export interface KeptKey extends SigningKeyFile {
  signsFromMs: number;
  /** When it stops verifying; Infinity: the newest never does; undefined: it is not written down yet. */
  retiresAtMs: number | undefined;
}

export interface KeyStore {
  /** Newest first. */
  list(): Promise<KeptKey[]>;
  /** Makes the first key, unless another gateway has made it. */
  addFirst(nowMs: number): Promise<unknown>;
  /** Makes the next key. The keys before it stop verifying `retireAfterMs` after it began to sign. */
  add(nowMs: number, retireAfterMs: number): Promise<Pick<KeptKey, "kid" | "signsFromMs">>;
  /** Writes down when a key stops verifying, which the list does not know. */
  retire?(kid: string, atMs: number): Promise<void>;
  remove(kid: string): Promise<void>;
}
