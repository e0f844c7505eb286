import { ClocheError, claimsProblem, innerTokenHeader, tokenParts } from "@cloche/protocol";
import type { ChannelKeys } from "./channel-keys.ts";

const cacheEntries = 256;
const tokenBytesMax = 8_192;

/**
 * Verifies inner tokens of one sandbox, which the edge makes of a verified owner's token (protocol's channel.ts). Checks the HS256
 * signature by this machine's key, issuer, audience and expiry. A verified token is remembered by its exact text; its claims are
 * checked again on every use, so that it expires on time.
 */
export class TokenVerifier {
  readonly #sandboxId: string;
  readonly #issuer: string;
  readonly #keys: ChannelKeys;
  readonly #verified = new Map<string, Record<string, unknown>>();
  #verifiedBy = 0;

  constructor(sandboxId: string, issuer: string, keys: ChannelKeys) {
    this.#sandboxId = sandboxId;
    this.#issuer = issuer;
    this.#keys = keys;
  }

  /** Throws `unauthenticated` with the fault of the token. `port`: port of the requested tunnel. */
  check(token: string, nowMs: number, port?: number): void {
    if (this.#verifiedBy !== this.#keys.generation) this.#verified.clear();
    this.#verifiedBy = this.#keys.generation;
    let claims = this.#verified.get(token);
    if (claims === undefined) {
      claims = this.#verify(token);
      if (this.#verified.size >= cacheEntries) {
        for (const oldest of this.#verified.keys()) {
          this.#verified.delete(oldest);
          break;
        }
      }
      this.#verified.set(token, claims);
    }
    const problem = claimsProblem(claims, this.#issuer, this.#sandboxId, nowMs);
    if (problem !== undefined) {
      this.#verified.delete(token);
      throw refuse(problem);
    }
    if (claims["port"] !== port)
      throw refuse("the token is for another route, or another port, than this one");
  }

  #verify(token: string): Record<string, unknown> {
    if (token.length > tokenBytesMax) throw refuse("the token is too long");
    const [header, payload, mac] = partsOf(token);
    const { alg, typ, crit } = parseObject(header);
    if (alg !== innerTokenHeader.alg || typ !== innerTokenHeader.typ) {
      throw refuse("the token is no inner token; the edge takes those of IssueDataPlaneToken");
    }
    if (crit !== undefined) throw refuse("the token has critical extensions that are not known here");
    if (!this.#keys.isMacOf(`${header}.${payload}`, Buffer.from(mac, "base64url"))) {
      throw refuse("the token was made for another machine");
    }
    return parseObject(payload);
  }
}

function refuse(message: string): ClocheError {
  return new ClocheError("unauthenticated", message);
}

function partsOf(token: string): ReturnType<typeof tokenParts> {
  try {
    return tokenParts(token);
  } catch {
    throw refuse(
      "the token is no JWT; the data plane accepts only tokens of IssueDataPlaneToken, not API keys",
    );
  }
}

function parseObject(part: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(Buffer.from(part, "base64url").toString("utf8"));
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // Answered below.
  }
  throw refuse("the token is no JWT");
}
