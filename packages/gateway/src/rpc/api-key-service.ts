/** cloche.public.v1.ApiKeyService: the team's keys. A secret is shown once and kept only as its SHA-256. */
import { type Clock, rfc3339 } from "@cloche/base";
import {
  ClocheError,
  generateName,
  limits,
  listPositionText,
  newApiKeyId,
  parseListPosition,
  type RandomBytes,
} from "@cloche/protocol";
import type { ApiKeyService } from "@cloche/protocol/public";
import type { ServiceImpl } from "@connectrpc/connect";
import type { ApiKeyRecord } from "../database/api-keys.ts";
import type { Database } from "../database/database.ts";
import type { AuditLog, Caller } from "../lifecycle/audit-log.ts";
import { callerOf, secretHash } from "./caller.ts";
import { fittingPage } from "./page-bytes.ts";
import { displayName, pageSizeOf, wholeWithin } from "./fields.ts";

export interface ApiKeyDependencies {
  apiKeys: Database["apiKeys"];
  audit: AuditLog;
  clock: Clock;
  randomBytes: RandomBytes;
}

export interface CreatedApiKey {
  key: ApiKeyRecord;
  secret: string;
}

const secretStart = "cloche_";
const prefixLength = secretStart.length + 6;
const secretBytes = 32;

/** Whether the text has the form of an API key's secret. */
export const isApiKeySecret = (text: string): boolean =>
  text.startsWith(secretStart) && /^[\w-]{43}$/.test(text.slice(secretStart.length));

export const newApiKeySecret = (randomBytes: RandomBytes): string =>
  secretStart + Buffer.from(randomBytes(secretBytes)).toString("base64url");

/**
 * `expiresInSeconds` 0: never. An empty name is generated, and so is a missing secret. `most`: valid keys that the team
 * may have; default: any number.
 */
export async function createApiKey(
  needs: ApiKeyDependencies,
  caller: Caller,
  wanted: { name: string; expiresInSeconds: number; secret?: string | undefined; most?: number },
): Promise<CreatedApiKey> {
  const { apiKeys, audit, clock, randomBytes } = needs;
  const nowMs = clock.nowMs();
  const secret = wanted.secret ?? newApiKeySecret(randomBytes);
  const key: ApiKeyRecord = {
    id: newApiKeyId(randomBytes),
    teamId: caller.teamId,
    name: wanted.name === "" ? generateName(randomBytes) : displayName("name", wanted.name),
    prefix: secret.slice(0, prefixLength),
    createdAtMs: nowMs,
    expiresAtMs: wanted.expiresInSeconds === 0 ? null : nowMs + wanted.expiresInSeconds * 1_000,
    revokedAtMs: null,
    lastUsedAtMs: null,
  };
  const entry = audit.entry(caller, "key.create", key.id);
  if (!(await apiKeys.insert(key, secretHash(secret), entry, wanted.most)))
    throw new ClocheError(
      "resource_exhausted",
      `the team has ${wanted.most} API keys, which is the most; revoke some that are not used`,
      { resource: "quota" },
    );
  return { key, secret };
}

export function apiKeyService(needs: ApiKeyDependencies): ServiceImpl<typeof ApiKeyService> {
  const { apiKeys, audit, clock } = needs;
  return {
    async createApiKey(request, context) {
      const expiresInSeconds = wholeWithin(
        "expires_in_seconds",
        request.expiresInSeconds,
        0,
        limits.timeoutSecondsMax,
      );
      const { key, secret } = await createApiKey(needs, callerOf(context), {
        name: request.name,
        expiresInSeconds,
        most: limits.apiKeysPerTeam,
      });
      return { key: keyMessage(key), secret };
    },

    async listApiKeys(request, context) {
      const { pageToken } = request;
      const pageSize = pageSizeOf(request);
      const after = pageToken === "" ? undefined : parseListPosition("page_token", pageToken);
      const found = await apiKeys.list(callerOf(context).teamId, {
        limit: pageSize + 1,
        ...(after && { after: { createdAtMs: Date.parse(after.created_at), id: after.id } }),
      });
      const keys = fittingPage(found.slice(0, pageSize).map(keyMessage));
      const last = keys.at(-1);
      const isLast = last === undefined || found.length === keys.length;
      const nextPageToken = isLast ? "" : listPositionText({ created_at: last.createdAt, id: last.id });
      return { keys, nextPageToken };
    },

    async revokeApiKey(request, context) {
      const caller = callerOf(context);
      const { id } = request;
      if (id === "")
        throw new ClocheError("invalid_argument", "id is missing; it must be the id of an API key");
      const entry = audit.entry(caller, "key.revoke", id);
      if (!(await apiKeys.revoke(caller.teamId, id, clock.nowMs(), entry))) {
        throw new ClocheError("not_found", `id: there is no API key ${JSON.stringify(id)}`);
      }
      return {};
    },
  };
}

const minuteMs = 60_000;

const keyMessage = (key: ApiKeyRecord) => ({
  id: key.id,
  name: key.name,
  prefix: key.prefix,
  createdAt: rfc3339(key.createdAtMs),
  expiresAt: key.expiresAtMs === null ? "" : rfc3339(key.expiresAtMs),
  lastUsedAt: key.lastUsedAtMs === null ? "" : rfc3339(Math.floor(key.lastUsedAtMs / minuteMs) * minuteMs),
});
