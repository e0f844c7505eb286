import { createHash } from "node:crypto";
import { ClocheApiError, type Cloche } from "@cloche/sdk";

/** A refusal before MCP begins: an HTTP status and a message. */
export class Refusal extends Error {
  override readonly name = "Refusal";
  readonly status: number;
  readonly headers: Record<string, string>;

  constructor(status: number, message: string, headers: Record<string, string> = {}) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

/** The caller: one API key of a team. */
export interface Caller {
  /** Hash of the key, to which sessions are bound. */
  keyHash: string;
  teamId: string;
  cloche: Cloche;
}

/** What the endpoint asks about keys. */
export interface Keys {
  /** Makes a client of the gateway with a caller's key. */
  clientFor(apiKey: string): Cloche;
  /** The team of a key; undefined: the key is unknown, revoked or expired. */
  teamOf(apiKey: string): Promise<string | undefined>;
}

/** The key of `Authorization: Bearer …`. */
export function bearerOf(authorization: string | undefined, maxBytes: number): string {
  const key = /^Bearer +(\S+)$/i.exec(authorization ?? "")?.[1];
  if (key !== undefined && key.length <= maxBytes) return key;
  const message =
    "send a team's API key as `Authorization: Bearer <key>`; cloche status --json names that of this machine";
  throw new Refusal(401, message, { "www-authenticate": "Bearer" });
}

/** Asks the gateway whether the key is valid. Called for each request, so that a revoked key is refused at once. */
export async function authenticate(key: string, keys: Keys): Promise<Caller> {
  const cloche = keys.clientFor(key);
  try {
    await cloche.gateway.listSandboxes({ page_size: 1 });
  } catch (error) {
    if (!(error instanceof ClocheApiError))
      throw new Refusal(503, "the gateway does not answer; try again", { "retry-after": "1" });
    const { status, message, retryAfterSeconds } = error;
    if (status === 401) throw refused(message);
    const wait = retryAfterSeconds === undefined ? undefined : { "retry-after": String(retryAfterSeconds) };
    throw new Refusal(status, message, wait);
  }
  const teamId = await keys.teamOf(key);
  if (teamId === undefined) throw refused("the API key is not valid any more");
  return { keyHash: createHash("sha256").update(key).digest("hex"), teamId, cloche };
}

const refused = (message: string): Refusal =>
  new Refusal(401, message, { "www-authenticate": 'Bearer error="invalid_token"' });
