/**
 * The owner of a store of checkpoints (base/src/owner.ts), for stores without conditional writes. Requires only that a list or read
 * sees every write that was answered before. Owns the blob `owner` and, for moments, `owner-claims/<session>`.
 *
 *   read owner ──as expected──▶ put claim ──▶ list claims ──alone──▶ read owner again ──as before──▶ put owner ──▶ delete claim
 *                                                 ├── a claim of a smaller session: withdraw, lose
 *                                                 └── only larger sessions: wait until they have withdrawn or won
 *
 * Two services cannot both win: a claim exists from before its list until after its owner is written. Of two, the one that lists last
 * sees either the other's claim or the owner that the other wrote. Claims left by a crash no longer count after `claimStaleMs`.
 */
import type { Clock, OwnedPlace, Owner } from "@cloche/base";
import { ClocheError, isInstallationId, isSessionId } from "@cloche/protocol";
import type { BlobStore } from "./blob-store.ts";

const ownerKey = "owner";
const claimPrefix = "owner-claims/";
const format = 1;
const claimStaleMs = 60_000;
/** A service that takes longer from its claim to its win loses, because its claim may count as stale. */
const claimHeldMostMs = 30_000;
const claimPollMs = 100;
const ownerBytesMax = 16_384;

export class OwnerOfStore implements OwnedPlace {
  readonly #blobs: BlobStore;
  readonly #clock: Pick<Clock, "monotonicMs" | "sleep">;

  constructor(blobs: BlobStore, clock: Pick<Clock, "monotonicMs" | "sleep">) {
    this.#blobs = blobs;
    this.#clock = clock;
  }

  async owner(): Promise<Owner | undefined> {
    const data = await this.#blobs.get(ownerKey);
    return data && parseOwner(data);
  }

  async replaceOwner(found: Owner | undefined, next: Owner): Promise<boolean> {
    const began = this.#clock.monotonicMs();
    const held = (): number => this.#clock.monotonicMs() - began;
    const claim = `${claimPrefix}${next.session}`;
    await this.#blobs.put(claim, encode({ session: next.session }));
    try {
      for (;;) {
        const rivals = await this.#rivals(claim);
        if (rivals.some((key) => key < claim) || held() > claimHeldMostMs) return false;
        if (rivals.length === 0) break;
        await this.#clock.sleep(claimPollMs);
      }
      if ((await this.owner())?.session !== found?.session || held() > claimHeldMostMs) return false;
      await this.#blobs.put(ownerKey, encodeOwner(next));
      return true;
    } finally {
      await this.#blobs.delete(claim);
    }
  }

  async ownerSeen(session: string, nowMs: number): Promise<boolean> {
    const found = await this.owner();
    if (found?.session !== session) return false;
    await this.#blobs.put(ownerKey, encodeOwner({ ...found, seenAtMs: nowMs }));
    return true;
  }

  async removeOwner(session: string): Promise<void> {
    if ((await this.owner())?.session === session) await this.#blobs.delete(ownerKey);
  }

  /** Claims of others that still count. Removes stale ones. Ages are differences of the store's own clock. */
  async #rivals(own: string): Promise<string[]> {
    const claims = await this.#blobs.list(claimPrefix);
    const ownAtMs = claims.find(({ key }) => key === own)?.modifiedAtMs ?? 0;
    const rivals: string[] = [];
    for (const { key, modifiedAtMs } of claims) {
      if (key === own) continue;
      if (ownAtMs - modifiedAtMs > claimStaleMs) await this.#blobs.delete(key);
      else rivals.push(key);
    }
    return rivals;
  }
}

const encode = (value: object): Uint8Array => Buffer.from(`${JSON.stringify(value)}\n`);

function decode(data: Uint8Array): unknown {
  try {
    if (data.length <= ownerBytesMax) return JSON.parse(Buffer.from(data).toString("utf8"));
  } catch {
    // No JSON: answer an empty object.
  }
  return {};
}

function encodeOwner(owner: Owner): Uint8Array {
  const { claimedAtMs, seenAtMs, ...fields } = owner;
  return encode({ format, ...fields, claimed_at_ms: claimedAtMs, seen_at_ms: seenAtMs });
}

/** Throws for a damaged blob: the store has an owner and must not count as free. */
function parseOwner(data: Uint8Array): Owner {
  const found = decode(data) as Record<string, unknown>;
  const text = (name: string): string => (typeof found[name] === "string" ? found[name] : "");
  const time = (name: string): number => (typeof found[name] === "number" ? found[name] : 0);
  const owner: Owner = {
    installation: text("installation"),
    home: text("home"),
    host: text("host"),
    machine: text("machine"),
    session: text("session"),
    claimedAtMs: time("claimed_at_ms"),
    seenAtMs: time("seen_at_ms"),
  };
  if (found["format"] !== format || !isInstallationId(owner.installation) || !isSessionId(owner.session)) {
    throw new ClocheError(
      "failed_precondition",
      `the blob "${ownerKey}" of checkpoint storage does not say whose it is: it is damaged, or of a newer release. Look at it; where it is damaged and the storage is this service's, delete it and start again`,
    );
  }
  return owner;
}
