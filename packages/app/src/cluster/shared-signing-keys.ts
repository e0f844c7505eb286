/**
 * The keys that sign data plane tokens, one set for all gateways of a cluster, sealed in the database. Each gateway looks every few seconds,
 * tells hosts and edges of a key as soon as it sees it, and signs with it only when every gateway must have seen it:
 *
 *   added ──all gateways look, hosts and edges know it──▶ signs ──the next one signs──▶ verifies ──tokens are over──▶ removed
 *
 * A gateway that has not reached the database for that long takes tokens of the new key only once it has.
 */
import { type Clock, type Log, regularly, SerialQueue } from "@cloche/base";
import type { Rotated } from "../key-rotation.ts";
import { newSigningKey, type SigningKeyFile } from "../setup/signing-keys.ts";
import type { SharedSecrets } from "./shared-secrets.ts";

const prefix = "signing-key/";
const lookEveryMs = 5_000;
/** From when a key is there until it signs: every gateway has looked, and told. */
const signsAfterMs = 15_000;
/** A token that was signed the moment before the next key took over, and clocks that are not the same. */
const graceMs = 10_000;

interface SharedKey extends SigningKeyFile {
  signsFromMs: number;
  /** When those before it are good for nothing any more. */
  othersRetireAtMs: number;
}

export interface SharedSigningKeysNeeds {
  secrets: SharedSecrets;
  /** Of a token, at most. */
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

  /** The first signs, all verify. Made where the cluster has none yet. */
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

  /** `use`: resolves when the first of the keys signs and all verify. */
  start(use: (keys: readonly SigningKeyFile[]) => Promise<void>): void {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    this.#use = use;
    const failed = (err: unknown) => log.warn({ err }, "the signing keys could not be looked at, or told");
    this.#running = regularly({ everyMs: lookEveryMs, first: "later", clock, signal, failed }, () =>
      this.#inTurn(() => this.#look()),
    );
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
    await this.#queue.drain();
  }

  /** Makes the next key; answers when it signs, here and everywhere. */
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

/** The one that signs first: the newest whose time has come. */
function inOrder(keys: readonly SharedKey[], nowMs: number): SigningKeyFile[] {
  const newestFirst = keys.toSorted((a, b) => b.signsFromMs - a.signsFromMs);
  const signing = newestFirst.find(({ signsFromMs }) => signsFromMs <= nowMs) ?? newestFirst.at(-1);
  const others = newestFirst.filter((key) => key !== signing);
  return [...(signing === undefined ? [] : [signing]), ...others].map(({ kid, privateKeyPem }) => ({
    kid,
    privateKeyPem,
  }));
}

/** When the first key after it lets go of it; never for the newest. */
function retiresAt(kid: string, keys: readonly SharedKey[]): number {
  const own = keys.find((key) => key.kid === kid)?.signsFromMs ?? 0;
  const after = keys.filter(({ signsFromMs }) => signsFromMs > own);
  return Math.min(...after.map(({ othersRetireAtMs }) => othersRetireAtMs));
}

const namesOf = (keys: readonly SigningKeyFile[]): string => keys.map(({ kid }) => kid).join(" ");
