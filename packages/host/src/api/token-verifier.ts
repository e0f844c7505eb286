// Data plane tokens on the routes that the host answers (service-interface.md, Authentication; decisions.md, Token).
import { createPublicKey, type KeyObject, verify } from "node:crypto";
import { ClocheError, claimsProblem, type TokenClaims, tokenParts } from "@cloche/protocol";
import type { KeySet } from "../machines/machines.ts";

const TOKEN_LENGTH_MAX = 8_192;

const refused = (problem: string, cause?: unknown): ClocheError =>
  new ClocheError("unauthenticated", problem, { cause });

/** The claims of the token. Throws `unauthenticated` saying what is wrong with the token of an Authorization header. */
export function verifyToken(
  authorization: string | undefined,
  keys: KeySet,
  sandboxId: string,
  nowMs: number,
): TokenClaims {
  const token = /^bearer +(\S+) *$/i.exec(authorization ?? "")?.[1];
  if (token === undefined)
    throw refused("send the sandbox's data plane token as Authorization: Bearer <token>");
  if (token.length > TOKEN_LENGTH_MAX) throw refused("token is too long to be one of ours");
  const claims = readClaims(token, keys);
  const problem = claimsProblem(claims, keys.issuer, sandboxId, nowMs);
  if (problem !== undefined) throw refused(problem);
  return claims as TokenClaims;
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
function publicKey(jwk: { kty: string; n: string; e: string }): KeyObject {
  let key = publicKeys.get(jwk);
  if (!key) {
    key = createPublicKey({ key: jwk, format: "jwk" });
    publicKeys.set(jwk, key);
  }
  return key;
}
