/**
 * Rotation of the keys that sign data plane tokens, for the operator. The next key is made, host and edges learn of it, then it signs;
 * those before go on verifying until every token they signed has expired, and are removed with their files.
 *
 *   <home>/keys/signing/<kid>.pem            made by rotation or the first start; the newest signs
 *   <home>/keys/signing/<kid>.retires.json   of an older key: when it is removed
 *
 * Owned by the running service. After a crash in between the newest key signs from the next start on, as intended.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, type Log, readJsonFile, SerialQueue, writeDurably } from "@cloche/base";
import {
  addSigningKey,
  readSigningKeys,
  type SigningKeyFile,
  signingKeyFolder,
} from "./setup/signing-keys.ts";

export interface KeyRotationParts {
  home: string;
  /** The longest lifetime of a token. */
  tokenLifetimeSeconds: number;
  /** Resolves when the first of the keys signs and all verify. */
  use(keys: readonly SigningKeyFile[]): Promise<void>;
  clock: Clock;
  log: Log;
}

export interface Rotated {
  /** Id of the key that signs now. */
  kid: string;
  /** The older keys and when they are removed. */
  retiring: { kid: string; atMs: number }[];
}

/** For tokens signed just before the next key took over, and for clocks that differ. */
const GRACE_MS = 10_000;
/** Longest wait for the next check: timers have a maximum, and a failed removal is tried again. */
const LOOK_EVERY_MAX_MS = 3_600_000;
const RETRY_MS = 60_000;

export class KeyRotation {
  readonly #parts: KeyRotationParts;
  readonly #queue = new SerialQueue();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(parts: KeyRotationParts) {
    this.#parts = parts;
  }

  /** Goes on with the removals of an earlier run of the service; `keys` are the keys in use. */
  async start(): Promise<void> {
    await this.#inTurn(() => this.#retire());
  }

  close(): Promise<unknown> {
    this.#closed = true;
    clearTimeout(this.#timer);
    return this.#queue.drain();
  }

  /** Makes the next key and signs with it. If host or edges cannot be told, nothing changes. */
  rotate(): Promise<Rotated> {
    return this.#inTurn(async () => {
      const { home, use, clock, log } = this.#parts;
      const before = await readSigningKeys(home);
      // Names sort by their second of creation, so the new name must be of a later second.
      const newestMs = Math.max(clock.nowMs(), 1_000 + Math.max(...before.map(({ kid }) => madeAtMs(kid))));
      const next = await addSigningKey(home, newestMs);
      try {
        await use([next, ...before]);
      } catch (error) {
        await rm(join(signingKeyFolder(home), `${next.kid}.pem`), { force: true });
        throw error;
      }
      const retiring = await this.#retire();
      log.info({ kid: next.kid, retiring }, "tokens are signed with a new key");
      return { kid: next.kid, retiring };
    });
  }

  #inTurn<Answer>(work: () => Promise<Answer>): Promise<Answer> {
    return this.#queue.run("keys", work);
  }

  /** Removes keys that are due, writes down when the others are due, and sets a timer for then. Answers the remaining ones. */
  async #retire(): Promise<Rotated["retiring"]> {
    const { home, use, clock, log } = this.#parts;
    const [signing, ...older] = await readSigningKeys(home);
    if (signing === undefined) return [];
    const retiring = await Promise.all(
      older.map(async (key) => ({ key, kid: key.kid, atMs: await this.#retiresAt(key.kid) })),
    );
    const left = retiring.filter(({ atMs }) => atMs > clock.nowMs());
    const due = retiring.filter((one) => !left.includes(one));
    if (due.length > 0) {
      await use([signing, ...left.map(({ key }) => key)]);
      for (const { kid } of due) {
        await rm(join(signingKeyFolder(home), `${kid}.pem`), { force: true });
        await rm(this.#noteOf(kid), { force: true });
        log.info({ kid }, "a signing key is no longer good for anything and was removed");
      }
    }
    const next = Math.min(...left.map(({ atMs }) => atMs));
    if (left.length > 0) this.#lookIn(Math.min(LOOK_EVERY_MAX_MS, Math.max(0, next - clock.nowMs())));
    return left.map(({ kid, atMs }) => ({ kid, atMs }));
  }

  async #retiresAt(kid: string): Promise<number> {
    const { home, tokenLifetimeSeconds, clock } = this.#parts;
    const note = (await readJsonFile(this.#noteOf(kid))) as { at_ms?: number } | undefined;
    if (typeof note?.at_ms === "number") return note.at_ms;
    const atMs = clock.nowMs() + tokenLifetimeSeconds * 1_000 + GRACE_MS;
    await mkdir(signingKeyFolder(home), { recursive: true, mode: 0o700 });
    await writeDurably(this.#noteOf(kid), `${JSON.stringify({ at_ms: atMs })}\n`, 0o600);
    return atMs;
  }

  #lookIn(ms: number): void {
    clearTimeout(this.#timer);
    if (this.#closed) return;
    this.#timer = setTimeout(() => {
      this.#inTurn(() => this.#retire()).catch((error: unknown) => {
        this.#parts.log.warn({ err: error }, "an old signing key could not be removed; tried again");
        this.#lookIn(RETRY_MS);
      });
    }, ms);
    this.#timer.unref();
  }

  #noteOf(kid: string): string {
    return join(signingKeyFolder(this.#parts.home), `${kid}.retires.json`);
  }
}

/** The kid begins with the second of its creation (setup/signing-keys.ts). */
const madeAtMs = (kid: string): number => Number.parseInt(kid.split("-")[0] ?? "0", 36) * 1_000;
