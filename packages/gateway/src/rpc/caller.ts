import { createHash } from "node:crypto";
import type { Clock, Log } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { createContextKey, type HandlerContext } from "@connectrpc/connect";
import type { ApiKeyRecord } from "../database/api-keys.ts";
import type { Database } from "../database/database.ts";
import type { Caller } from "../lifecycle/audit-log.ts";
import { gatewayLimits } from "../limits.ts";

/** Set before any handler runs. */
export const callerKey = createContextKey<Caller | undefined>(undefined, { description: "who calls" });
export const requestIdKey = createContextKey<string>("", { description: "x-request-id" });

export function callerOf(context: Pick<HandlerContext, "values">): Caller {
  const caller = context.values.get(callerKey);
  if (caller === undefined) throw new Error("a handler ran without a caller");
  return caller;
}

export const secretHash = (secret: string): string => createHash("sha256").update(secret).digest("hex");

export const isGoodKey = (key: ApiKeyRecord, nowMs: number): boolean =>
  key.revokedAtMs === null && (key.expiresAtMs === null || key.expiresAtMs > nowMs);

/** Finds the team of an API key. Asks the database each time, so that a revocation takes effect at once everywhere. */
export class Authenticator {
  readonly #apiKeys: Database["apiKeys"];
  readonly #clock: Pick<Clock, "nowMs">;
  readonly #log: Log;
  readonly #touchedAtMs = new Map<string, number>();

  constructor(apiKeys: Database["apiKeys"], clock: Pick<Clock, "nowMs">, log: Log) {
    this.#apiKeys = apiKeys;
    this.#clock = clock;
    this.#log = log;
  }

  /** `authorization` is the header as sent, or null. Throws `unauthenticated` saying what is wrong with it. */
  async authenticate(authorization: string | null, requestId: string): Promise<Caller> {
    const [, secret] = /^bearer +([\x21-\x7e]{1,512})$/i.exec(authorization ?? "") ?? [];
    if (secret === undefined) {
      const what = authorization ? "is not of the form" : "is missing; send";
      throw new ClocheError("unauthenticated", `header Authorization ${what} "Bearer <API_KEY>"`);
    }
    const key = await this.#apiKeys.findByHash(secretHash(secret));
    if (key === undefined) {
      const isJwt = secret.split(".").length === 3;
      const hint = isJwt ? "; the gateway takes the team's API key, not a data plane token" : "";
      throw new ClocheError("unauthenticated", `the API key in header Authorization is unknown${hint}`);
    }
    const nowMs = this.#clock.nowMs();
    if (key.revokedAtMs !== null) throw new ClocheError("unauthenticated", `API key ${key.id} is revoked`);
    if (key.expiresAtMs !== null && key.expiresAtMs <= nowMs) {
      throw new ClocheError("unauthenticated", `API key ${key.id} is expired`);
    }
    this.#touch(key.id, nowMs);
    return { teamId: key.teamId, actor: key.id, requestId };
  }

  /** Notes the use of the key, to the minute, without making the caller wait. */
  #touch(keyId: string, nowMs: number): void {
    const last = this.#touchedAtMs.get(keyId);
    if (last !== undefined && nowMs - last < gatewayLimits.apiKeyTouchMs) return;
    this.#touchedAtMs.set(keyId, nowMs);
    this.#apiKeys.touch(keyId, nowMs).catch((error: unknown) => {
      this.#log.warn({ err: error }, "last use of an API key not recorded");
    });
  }
}
