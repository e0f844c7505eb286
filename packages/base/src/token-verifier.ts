import { createPublicKey, type KeyObject, verify } from "node:crypto";
import {
  ClocheError,
  claimsProblem,
  portClaimsProblem,
  type TokenClaims,
  tokenParts,
  type VerificationKey,
} from "@cloche/protocol";

/** The issuer whose tokens are accepted, and its public keys. */
export interface KeySet {
  issuer: string;
  keys: VerificationKey[];
}

const cachedTokens = 4_096;
const tokenBytes = 8_192;

/** The token of an `Authorization: Bearer …` header. */
export function bearerToken(authorization: string | undefined): string | undefined {
  return /^bearer +(\S+) *$/i.exec(authorization ?? "")?.[1];
}

const refused = (problem: string, cause?: unknown): ClocheError =>
  new ClocheError("unauthenticated", problem, { cause });

type ProblemOf = (claims: unknown, issuer: string, nowMs: number) => string | undefined;

/**
 * Verifies data plane tokens: at the edge for all requests that go to an agent or a port or wake a sandbox, at the host
 * for its own routes. Verified signatures are remembered by the exact token; claims are checked each time.
 */
export class TokenVerifier {
  readonly #keys: () => KeySet;
  readonly #nowMs: () => number;
  #cache = new Map<string, unknown>();
  #cachedFor: KeySet | undefined;

  /** `keys`: returns the present keys; `verify` throws what it throws. A changed set must be another object. */
  constructor(keys: () => KeySet, nowMs: () => number) {
    this.#keys = keys;
    this.#nowMs = nowMs;
  }

  /** Returns the token's claims. Throws `unauthenticated` saying what is wrong. */
  verify(token: string | undefined, sandboxId: string): TokenClaims {
    return this.#verify(token, (claims, issuer, nowMs) => claimsProblem(claims, issuer, sandboxId, nowMs));
  }

  /** The same for the token in the cookie of a port link. */
  verifyForPort(token: string, target: { sandboxId: string; port: number }): TokenClaims {
    return this.#verify(token, (claims, issuer, nowMs) => portClaimsProblem(claims, issuer, target, nowMs));
  }

  #verify(token: string | undefined, problemOf: ProblemOf): TokenClaims {
    const keys = this.#keys();
    if (token === undefined)
      throw refused("send the sandbox's data plane token as Authorization: Bearer <token>");
    if (token.length > tokenBytes) throw refused("token is too long to be one of ours");
    if (this.#cachedFor !== keys) {
      this.#cache = new Map();
      this.#cachedFor = keys;
    }
    let claims = this.#cache.get(token);
    if (claims === undefined) {
      claims = readClaims(token, keys);
      if (this.#cache.size >= cachedTokens) this.#cache.delete(this.#cache.keys().next().value as string);
      this.#cache.set(token, claims);
    }
    const problem = problemOf(claims, keys.issuer, this.#nowMs());
    if (problem !== undefined) throw refused(problem);
    return claims as TokenClaims;
  }
}

function readClaims(token: string, keys: KeySet): unknown {
  try {
    const [head, body, signature] = tokenParts(token);
    const { alg, kid, crit } = parsePart(head) as Record<string, unknown>;
    if (alg !== "RS256") throw new Error("not RS256");
    if (crit !== undefined) throw new Error("critical extensions that are not known here");
    const key = keys.keys.find((one) => one.kid === kid);
    if (!key) throw new Error("unknown kid");
    const signed = Buffer.from(`${head}.${body}`);
    if (!verify("RSA-SHA256", signed, publicKey(key.jwk), Buffer.from(signature, "base64url")))
      throw new Error("wrong signature");
    return parsePart(body);
  } catch (error) {
    throw refused("token is malformed, or not signed by this service with RS256", error);
  }
}

const parsePart = (part: string): unknown => JSON.parse(Buffer.from(part, "base64url").toString("utf8"));

const publicKeys = new WeakMap<object, KeyObject>();
function publicKey(jwk: VerificationKey["jwk"]): KeyObject {
  let key = publicKeys.get(jwk);
  if (!key) {
    key = createPublicKey({ key: jwk, format: "jwk" });
    publicKeys.set(jwk, key);
  }
  return key;
}
