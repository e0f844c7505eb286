/**
 * The keys that sign data plane tokens: one set for all gateways of a cluster, sealed in the database. Each gateway reads the set
 * every few seconds and tells hosts and edges of a new key at once. It signs with the key only when every gateway must have read it:
 *
 *   added ──gateways, hosts and edges learn of it──▶ signs ──the next key signs──▶ verifies ──its tokens expire──▶ removed
 *
 * A gateway that could not read the database for that long accepts tokens of the new key only after its next read.
 */
import { type Clock, type Log, regularly, SerialQueue } from "@cloche/base";
import type { Rotated } from "../key-rotation.ts";
import { newSigningKey, type SigningKeyFile } from "../setup/signing-keys.ts";
import type { SharedSecrets } from "./shared-secrets.ts";

const prefix = "signing-key/";
const lookEveryMs = 5_000;
/** From the insert of a key until it signs. In this time every gateway has read it and told hosts and edges. */
const signsAfterMs = 15_000;
/** For tokens signed just before the next key took over, and for clocks that differ. */
const graceMs = 10_000;

interface SharedKey extends SigningKeyFile {
  signsFromMs: number;
  /** When the keys before it stop verifying. */
  othersRetireAtMs: number;
}

export interface SharedSigningKeysNeeds {
  secrets: SharedSecrets;
  /** The longest lifetime of a token. */
  tokenLifetimeSeconds: number;
  clock: Clock;
  log: Log;
}

export class SharedSigningKeys {
  readonly #needs: SharedSigningKeysNeeds;
  readonly #stop = new AbortController();
  readonly #queue = new SerialQueue();
  #inUse = "";
  #running: Promise<void> | undefined;

  constructor(needs: SharedSigningKeysNeeds) {
    this.#needs = needs;
  }

  /** The first key signs, all verify. Makes the first key of a cluster. */
  async current(): Promise<SigningKeyFile[]> {
    const { secrets, clock } = this.#needs;
    const nowMs = clock.nowMs();
    if ((await this.#read()).length === 0) {
      const first: SharedKey = { ...(await newSigningKey(nowMs)), signsFromMs: 0, othersRetireAtMs: 0 };
      await secrets.keep(`${prefix}first`, JSON.stringify(first));
    }
    const keys = inOrder(await this.#read(), nowMs);
    this.#inUse = namesOf(keys);
    return keys;
  }

  /** `use` must resolve when the first of the keys signs and all verify. */
  start(use: (keys: readonly SigningKeyFile[]) => Promise<void>): void {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    this.#use = use;
    const failed = (err: unknown) => log.warn({ err }, "refresh of the signing keys failed");
    this.#running = regularly({ everyMs: lookEveryMs, first: "later", clock, signal, failed }, () =>
      this.#inTurn(() => this.#look()),
    );
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
    await this.#queue.drain();
  }

  /** Makes the next key; resolves when it signs on all gateways. */
  async rotate(): Promise<Rotated> {
    const { secrets, tokenLifetimeSeconds, clock, log } = this.#needs;
    const nowMs = clock.nowMs();
    const newestMs = Math.max(0, ...(await this.#read()).map(({ signsFromMs }) => signsFromMs));
    const signsFromMs = Math.max(nowMs + signsAfterMs, newestMs + 1_000);
    const othersRetireAtMs = signsFromMs + tokenLifetimeSeconds * 1_000 + graceMs;
    const next: SharedKey = { ...(await newSigningKey(nowMs)), signsFromMs, othersRetireAtMs };
    await secrets.add(prefix + next.kid, JSON.stringify(next));
    await this.#inTurn(() => this.#look());
    await clock.sleep(signsFromMs - clock.nowMs(), this.#stop.signal);
    await this.#inTurn(() => this.#look());
    const keys = await this.#read();
    const retiring = keys.filter(({ kid }) => kid !== next.kid);
    log.info({ kid: next.kid }, "tokens are signed with a new key");
    return { kid: next.kid, retiring: retiring.map(({ kid }) => ({ kid, atMs: retiresAt(kid, keys) })) };
  }

  #use: (keys: readonly SigningKeyFile[]) => Promise<void> = async () => undefined;

  async #look(): Promise<void> {
    const { secrets, clock, log } = this.#needs;
    const nowMs = clock.nowMs();
    const found = await this.#read();
    const due = found.filter(({ kid }) => retiresAt(kid, found) <= nowMs);
    const keys = inOrder(
      found.filter((key) => !due.includes(key)),
      nowMs,
    );
    if (namesOf(keys) !== this.#inUse) {
      await this.#use(keys);
      this.#inUse = namesOf(keys);
    }
    for (const { kid, name } of due) {
      await secrets.remove(name);
      log.info({ kid }, "a signing key is no longer good for anything and was removed");
    }
  }

  async #read(): Promise<(SharedKey & { name: string })[]> {
    const found = await this.#needs.secrets.list(prefix);
    return found.map(({ name, value }) => ({ ...(JSON.parse(value) as SharedKey), name }));
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    return this.#queue.run("keys", work);
  }
}

/** Puts the signing key first: the newest key that is old enough to sign. */
function inOrder(keys: readonly SharedKey[], nowMs: number): SigningKeyFile[] {
  const newestFirst = keys.toSorted((a, b) => b.signsFromMs - a.signsFromMs);
  const signing = newestFirst.find(({ signsFromMs }) => signsFromMs <= nowMs) ?? newestFirst.at(-1);
  const others = newestFirst.filter((key) => key !== signing);
  return [...(signing === undefined ? [] : [signing]), ...others].map(({ kid, privateKeyPem }) => ({
    kid,
    privateKeyPem,
  }));
}

/** When the key stops verifying, as set by the first key after it; the newest never does. */
function retiresAt(kid: string, keys: readonly SharedKey[]): number {
  const own = keys.find((key) => key.kid === kid)?.signsFromMs ?? 0;
  const after = keys.filter(({ signsFromMs }) => signsFromMs > own);
  return Math.min(...after.map(({ othersRetireAtMs }) => othersRetireAtMs));
}

const namesOf = (keys: readonly SigningKeyFile[]): string => keys.map(({ kid }) => kid).join(" ");
