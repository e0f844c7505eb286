/**
 * The keys that sign data plane tokens, and their rotation by the operator. The keys are in files of the home (setup/signing-keys.ts),
 * or in the database that all gateways of a cluster share (cluster/shared-signing-keys.ts). Each gateway reads them every few seconds,
 * and tells hosts and edges of a new key at once. It signs with the key only when every gateway must have read it:
 *
 *   added ──gateways, hosts and edges learn of it──▶ signs ──the next key signs──▶ verifies ──its tokens expire──▶ removed
 *
 * A gateway that could not read the keys for that long accepts tokens of the new key only after its next read.
 */
import { type Clock, type Log, regularly, SerialQueue } from "@cloche/base";
import type { KeptKey, KeyStore, SigningKeyFile } from "./setup/key-store.ts";

export interface KeyRotationParts {
  store: KeyStore;
  /** The longest lifetime of a token. */
  tokenLifetimeSeconds: number;
  clock: Clock;
  log: Log;
}

export interface Rotated {
  /** Id of the key that signs now. */
  kid: string;
  /** The older keys and when they are removed. */
  retiring: { kid: string; atMs: number }[];
}

const lookEveryMs = 5_000;
/** For tokens signed just before the next key took over, and for clocks that differ. */
const graceMs = 10_000;

export class KeyRotation {
  readonly #parts: KeyRotationParts;
  readonly #stop = new AbortController();
  readonly #queue = new SerialQueue();
  #inUse = "";
  #running: Promise<void> | undefined;
  #use: (keys: readonly SigningKeyFile[]) => Promise<void> = async () => undefined;

  constructor(parts: KeyRotationParts) {
    this.#parts = parts;
  }

  /** The first key signs, all verify. Makes the very first one. */
  async current(): Promise<SigningKeyFile[]> {
    const { store, clock } = this.#parts;
    const nowMs = clock.nowMs();
    if ((await store.list()).length === 0) await store.addFirst(nowMs);
    const keys = inOrder(await store.list(), nowMs);
    this.#inUse = namesOf(keys);
    return keys;
  }

  /** `use` must resolve when the first of the keys signs and all verify. */
  start(use: (keys: readonly SigningKeyFile[]) => Promise<void>): void {
    const { clock, log } = this.#parts;
    const { signal } = this.#stop;
    this.#use = use;
    const failed = (err: unknown) => log.warn({ err }, "refresh of the signing keys failed");
    this.#running = regularly({ everyMs: lookEveryMs, first: "now", clock, signal, failed }, () =>
      this.#inTurn(() => this.#look()),
    );
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
    await this.#queue.drain();
  }

  /** Makes the next key; resolves when it signs on all gateways. If host or edges cannot be told in time, nothing changes. */
  async rotate(): Promise<Rotated> {
    const { store, clock, log } = this.#parts;
    const { kid, signsFromMs } = await this.#inTurn(async () => {
      const next = await store.add(clock.nowMs(), this.#retireAfterMs);
      await this.#look().catch(async (error: unknown) => {
        // What failed is about older keys, and is tried again.
        if (this.#isInUse(next.kid))
          return log.warn({ err: error }, "older signing keys were not retired yet");
        if (!this.#mayOthersSign(next.signsFromMs)) await store.remove(next.kid);
        throw error;
      });
      return next;
    });
    const leftMs = signsFromMs - clock.nowMs();
    if (leftMs > 0) {
      await clock.sleep(leftMs, this.#stop.signal);
      await this.#inTurn(() => this.#look());
    }
    const older = (await store.list()).filter((key) => key.kid !== kid);
    const endMs = clock.nowMs() + this.#retireAfterMs;
    const retiring = older.map((key) => ({ kid: key.kid, atMs: key.retiresAtMs ?? endMs }));
    log.info({ kid, retiring }, "tokens are signed with a new key");
    return { kid, retiring };
  }

  #isInUse(kid: string): boolean {
    return this.#inUse.split(" ").includes(kid);
  }

  /** Other gateways sign from a time on, by their clocks. */
  #mayOthersSign(signsFromMs: number): boolean {
    return signsFromMs > 0 && this.#parts.clock.nowMs() >= signsFromMs - graceMs;
  }

  get #retireAfterMs(): number {
    return this.#parts.tokenLifetimeSeconds * 1_000 + graceMs;
  }

  async #look(): Promise<void> {
    const { store, clock, log } = this.#parts;
    const nowMs = clock.nowMs();
    const found = await store.list();
    const due = found.filter(({ retiresAtMs = Number.POSITIVE_INFINITY }) => retiresAtMs <= nowMs);
    const keys = inOrder(
      found.filter((key) => !due.includes(key)),
      nowMs,
    );
    if (namesOf(keys) !== this.#inUse) {
      await this.#use(keys);
      this.#inUse = namesOf(keys);
    }
    for (const { kid, retiresAtMs } of found)
      if (retiresAtMs === undefined) await store.retire?.(kid, nowMs + this.#retireAfterMs);
    for (const { kid } of due) {
      await store.remove(kid);
      log.info({ kid }, "a signing key is no longer good for anything and was removed");
    }
  }

  #inTurn<Answer>(work: () => Promise<Answer>): Promise<Answer> {
    return this.#queue.run("keys", work);
  }
}

/** Puts the signing key first: the newest key that is old enough to sign. */
function inOrder(newestFirst: readonly KeptKey[], nowMs: number): SigningKeyFile[] {
  const signing = newestFirst.find(({ signsFromMs }) => signsFromMs <= nowMs) ?? newestFirst.at(-1);
  const others = newestFirst.filter((key) => key !== signing);
  return [...(signing === undefined ? [] : [signing]), ...others].map(({ kid, privateKeyPem }) => ({
    kid,
    privateKeyPem,
  }));
}

const namesOf = (keys: readonly SigningKeyFile[]): string => keys.map(({ kid }) => kid).join(" ");
