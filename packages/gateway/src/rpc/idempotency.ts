/** CreateSandbox and ForkSandbox with an idempotency key: the first call makes sandboxes, later calls return them. */
import { createHash } from "node:crypto";
import { type DescMessage, type MessageShape, toJson } from "@bufbuild/protobuf";
import type { Clock } from "@cloche/base";
import { ClocheError, isDisplayName, limits } from "@cloche/protocol";
import type { Database } from "../database/database.ts";
import { KeyTaken } from "../database/idempotency-keys.ts";
import type { CallKey } from "../lifecycle/lifecycle.ts";
import { refuse } from "./fields.ts";

/** Bounds the attempts of a call whose key is taken and freed again and again. */
const ATTEMPTS = 5;

export interface KeyedWork<Answer> {
  /** Makes the sandboxes and writes the key with them. Throws KeyTaken when another call was faster. */
  make(key: CallKey | undefined): Promise<Answer>;
  /** The answer for sandboxes made before; undefined: one of them is gone. */
  again(sandboxIds: readonly string[]): Promise<Answer | undefined>;
}

export class Idempotency {
  readonly #keys: Database["idempotencyKeys"];
  readonly #clock: Clock;

  constructor(keys: Database["idempotencyKeys"], clock: Clock) {
    this.#keys = keys;
    this.#clock = clock;
  }

  async once<Answer>(
    teamId: string,
    key: CallKey | undefined,
    { make, again }: KeyedWork<Answer>,
  ): Promise<Answer> {
    if (key === undefined) return await make(undefined);
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      const known = await this.#keys.find(teamId, key.key, this.#clock.nowMs());
      if (known === undefined) {
        try {
          return await make(key);
        } catch (error) {
          if (error instanceof KeyTaken) continue;
          throw error;
        }
      }
      if (known.requestHash !== key.requestHash) throw usedOtherwise(key.key);
      const answer = await again(known.sandboxIds);
      if (answer !== undefined) return answer;
      // If the first call was refused in the end, its key is free. If the owner deleted a sandbox, the key is not free.
      const still = await this.#keys.find(teamId, key.key, this.#clock.nowMs());
      if (still?.sandboxIds[0] === known.sandboxIds[0]) throw deletedSince(key.key, known.sandboxIds);
    }
    throw new ClocheError(
      "aborted",
      `idempotency_key: ${shown(key.key)} is used by many calls at once; try again`,
    );
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

const deletedSince = (key: string, ids: readonly string[]): ClocheError =>
  new ClocheError(
    "not_found",
    `idempotency_key: what the call with ${shown(key)} made was deleted since (${ids[0] ?? ""}); use another key`,
  );
