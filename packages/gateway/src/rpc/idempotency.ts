/** CreateSandbox and ForkSandbox with an idempotency key: the first call makes sandboxes, later calls return them. */
import { createHash } from "node:crypto";
import { type DescMessage, type MessageShape, toJson } from "@bufbuild/protobuf";
import type { Clock } from "@cloche/base";
import { ClocheError, isDisplayName, limits } from "@cloche/protocol";
import type { Database } from "../database/database.ts";
import type { CallKey } from "../lifecycle/lifecycle.ts";
import { refuse } from "./fields.ts";

export class Idempotency {
  readonly #keys: Database["idempotencyKeys"];
  readonly #clock: Clock;

  constructor(keys: Database["idempotencyKeys"], clock: Clock) {
    this.#keys = keys;
    this.#clock = clock;
  }

  /** The sandboxes of an earlier call with this key; undefined: there was none. Throws if its fields were others. */
  async find(teamId: string, key: CallKey): Promise<readonly string[] | undefined> {
    const known = await this.#keys.find(teamId, key.key, this.#clock.nowMs());
    if (known !== undefined && known.requestHash !== key.requestHash) throw usedOtherwise(key.key);
    return known?.sandboxIds;
  }

  /**
   * For a call whose sandboxes are gone. If it was refused in the end, its key is free. If the owner deleted a sandbox,
   * the key is not free: throws.
   */
  async requireFreed(teamId: string, { key }: CallKey, sandboxIds: readonly string[]): Promise<void> {
    const still = await this.#keys.find(teamId, key, this.#clock.nowMs());
    if (still?.sandboxIds[0] === sandboxIds[0]) throw deletedSince(key, sandboxIds);
  }
}

/** The request's key with the hash of its fields as sent, without defaults; undefined: the request has no key. */
export function callKey<Desc extends DescMessage>(
  method: string,
  schema: Desc,
  request: MessageShape<Desc> & { idempotencyKey?: string | undefined },
): CallKey | undefined {
  const { idempotencyKey: key, ...rest } = request;
  if (key === undefined) return undefined;
  const { idempotencyKeyLength } = limits;
  if (!isDisplayName(key, idempotencyKeyLength))
    throw refuse("idempotency_key", key, `1 to ${idempotencyKeyLength} printable characters`);
  const fields = JSON.stringify(sorted(jsonOf(schema, rest as MessageShape<Desc>)));
  return { key, requestHash: createHash("sha256").update(`${method} ${fields}`).digest("hex") };
}

function jsonOf<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): unknown {
  try {
    return toJson(schema, message);
  } catch (error) {
    throw new ClocheError("invalid_argument", `a field of the request has no value: ${String(error)}`, {
      cause: error,
    });
  }
}

/** Sorts the entries of maps, so that their order in the request does not count. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([name, one]) => [name, sorted(one)]));
}

const shown = (key: string): string => JSON.stringify(key);

const usedOtherwise = (key: string): ClocheError =>
  new ClocheError(
    "already_exists",
    `idempotency_key: ${shown(key)} was used with other fields within the last 24 hours; use another key`,
  );

export const keyIsBusy = ({ key }: CallKey): ClocheError =>
  new ClocheError("aborted", `idempotency_key: ${shown(key)} is used by many calls at once; try again`);

const deletedSince = (key: string, ids: readonly string[]): ClocheError =>
  new ClocheError(
    "not_found",
    `idempotency_key: what the call with ${shown(key)} made was deleted since (${ids[0] ?? ""}); use another key`,
  );
