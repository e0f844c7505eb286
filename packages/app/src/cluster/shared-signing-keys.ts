/** The signing keys of a cluster: one set for all gateways, sealed in the database. */
import type { KeptKey, KeyStore, SigningKeyFile } from "../setup/key-store.ts";
import { newSigningKey } from "../setup/signing-keys.ts";
import type { SharedSecrets } from "./shared-secrets.ts";

const prefix = "signing-key/";
/** From the insert of a key until it signs. In this time every gateway has read it and told hosts and edges. */
const signsAfterMs = 15_000;

interface SharedKey extends SigningKeyFile {
  signsFromMs: number;
  /** When the keys before it stop verifying. */
  othersRetireAtMs: number;
}

export function sharedSigningKeys(secrets: SharedSecrets): KeyStore {
  const read = async (): Promise<(SharedKey & { name: string })[]> =>
    (await secrets.list(prefix)).map(({ name, value }) => ({ ...(JSON.parse(value) as SharedKey), name }));
  return {
    async list() {
      const keys = await read();
      return keys.map((key) => withEnd(key, keys)).toSorted((a, b) => b.signsFromMs - a.signsFromMs);
    },
    async addFirst(nowMs) {
      const first: SharedKey = { ...(await newSigningKey(nowMs)), signsFromMs: 0, othersRetireAtMs: 0 };
      await secrets.keep(`${prefix}first`, JSON.stringify(first));
    },
    async add(nowMs, retireAfterMs) {
      const newestMs = Math.max(0, ...(await read()).map(({ signsFromMs }) => signsFromMs));
      const signsFromMs = Math.max(nowMs + signsAfterMs, newestMs + 1_000);
      const key = await newSigningKey(nowMs);
      const next: SharedKey = { ...key, signsFromMs, othersRetireAtMs: signsFromMs + retireAfterMs };
      await secrets.add(prefix + key.kid, JSON.stringify(next));
      return next;
    },
    async remove(kid) {
      for (const key of await read()) if (key.kid === kid) await secrets.remove(key.name);
    },
  };
}

/** A key stops verifying as set by the first key after it. */
function withEnd(key: SharedKey, all: readonly SharedKey[]): KeptKey {
  const after = all.filter(({ signsFromMs }) => signsFromMs > key.signsFromMs);
  return { ...key, retiresAtMs: Math.min(...after.map(({ othersRetireAtMs }) => othersRetireAtMs)) };
}
