import { createPublicKey, type JsonWebKey as JWK, type KeyObject, verify } from "node:crypto";
import { ClocheError, claimsProblem, tokenParts } from "@cloche/protocol";

/** Public keys of the gateway, as the host passes them (guest.proto, GuestKeySet). */
export interface KeySet {
  issuer: string;
  keys: readonly { kid: string; jwkJson: string }[];
}

const cacheEntries = 256;
const tokenBytesMax = 8_192;
const modulusBitsMin = 2_048;

/**
 * Verifies data plane tokens of one sandbox (decisions.md, Token): RS256 only, signature, issuer, audience, expiry. A
 * verified token is remembered by its exact text, and its claims are checked anew on every use, so it expires on time.
 */
export class TokenVerifier {
  readonly #sandboxId: string;
  readonly #issuer: string;
  readonly #keys = new Map<string, KeyObject>();
  readonly #verified = new Map<string, unknown>();

  /** Throws `invalid_argument` where a key is no RSA public key of at least 2,048 bits. */
  constructor(sandboxId: string, keySet: KeySet) {
    this.#sandboxId = sandboxId;
    this.#issuer = keySet.issuer;
    for (const { kid, jwkJson } of keySet.keys) this.#keys.set(kid, importKey(kid, jwkJson));
  }

  /** Throws `unauthenticated` saying what is wrong with the token. */
  check(token: string, nowMs: number): void {
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
  }

  #verify(token: string): unknown {
    if (token.length > tokenBytesMax) throw refuse("the token is too long");
    const [header, payload, signature] = partsOf(token);
    const { alg, kid, crit } = parseObject(header);
    if (alg !== "RS256") throw refuse("the token is not signed with RS256");
    if (crit !== undefined) throw refuse("the token has critical extensions that are not known here");
    const key = typeof kid === "string" ? this.#keys.get(kid) : undefined;
    if (key === undefined) throw refuse("the token is signed with a key that is not known here");
    const signed = Buffer.from(`${header}.${payload}`, "latin1");
    if (!verify("RSA-SHA256", signed, key, Buffer.from(signature, "base64url"))) {
      throw refuse("the token's signature is wrong");
    }
    return parseObject(payload);
  }
}

function importKey(kid: string, jwkJson: string): KeyObject {
  const wrong = (cause?: unknown): ClocheError =>
    new ClocheError(
      "invalid_argument",
      `keys: ${kid} is no RSA public key of ${modulusBitsMin} bits or more`,
      {
        cause,
      },
    );
  let key: KeyObject;
  try {
    key = createPublicKey({ key: JSON.parse(jwkJson) as JWK, format: "jwk" });
  } catch (error) {
    throw wrong(error);
  }
  const bits = key.asymmetricKeyDetails?.modulusLength ?? 0;
  if (key.asymmetricKeyType !== "rsa" || bits < modulusBitsMin) throw wrong();
  return key;
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
