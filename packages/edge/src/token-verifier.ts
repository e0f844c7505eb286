import type { IncomingMessage } from "node:http";
import { compactVerify, importJWK } from "jose";
import {
  ClocheError,
  claimsProblem,
  portClaimsProblem,
  type TokenClaims,
  tokenParts,
} from "@cloche/protocol";
import type { Keys } from "./route-table.ts";

const cachedTokens = 4_096;
const tokenBytes = 8_192;

/** The token of an `Authorization: Bearer …` header. */
export function bearerToken(authorization: string | undefined): string | undefined {
  return /^bearer +(\S+) *$/i.exec(authorization ?? "")?.[1];
}

/** What a browser offers beside its subprotocol, since it can set no other header of a WebSocket: the token follows. */
export const tokenSubprotocol = "cloche.token.";

/**
 * The Authorization of a request: its own, or of a WebSocket without one the token that it offers as a subprotocol. What goes on
 * to the agent no longer offers it.
 */
export function authorizationOf(request: IncomingMessage): string | undefined {
  const { authorization, upgrade } = request.headers;
  if (authorization !== undefined || upgrade?.toLowerCase() !== "websocket") return authorization;
  const offered = (request.headers["sec-websocket-protocol"] ?? "").split(",").map((name) => name.trim());
  const token = offered.find((name) => name.startsWith(tokenSubprotocol));
  return token === undefined ? undefined : `Bearer ${token.slice(tokenSubprotocol.length)}`;
}

/** Whether the text is a token of this service, valid or not: such a one is never shown to a user's server. */
export function isOurToken(token: string, issuer: string): boolean {
  try {
    const payload = JSON.parse(
      Buffer.from(token.split(".")[1] ?? "", "base64url").toString("utf8"),
    ) as unknown;
    return (payload as { iss?: unknown } | null)?.iss === issuer;
  } catch {
    return false;
  }
}

const refused = (problem: string): ClocheError => new ClocheError("unauthenticated", problem);

type ProblemOf = (claims: unknown, issuer: string, nowMs: number) => string | undefined;

/**
 * Verifies data plane tokens: of all that goes to an agent, to a port, or wakes a sandbox; those of the host's routes the host does
 * (service-interface.md, Authentication; decisions.md, Token). Signatures are remembered by exact token, claims checked each time.
 */
export class TokenVerifier {
  readonly #keys: () => Keys | undefined;
  readonly #nowMs: () => number;
  #cache = new Map<string, unknown>();
  #cachedFor: Keys | undefined;

  constructor(keys: () => Keys | undefined, nowMs: () => number) {
    this.#keys = keys;
    this.#nowMs = nowMs;
  }

  /** Its claims. Throws `unauthenticated` saying what is wrong; `unavailable` while no key set is known yet. */
  verify(token: string | undefined, sandboxId: string): Promise<TokenClaims> {
    return this.#verify(token, (claims, issuer, nowMs) => claimsProblem(claims, issuer, sandboxId, nowMs));
  }

  /** The token in the cookie of a port link, likewise. */
  verifyForPort(token: string, target: { sandboxId: string; port: number }): Promise<TokenClaims> {
    return this.#verify(token, (claims, issuer, nowMs) => portClaimsProblem(claims, issuer, target, nowMs));
  }

  async #verify(token: string | undefined, problemOf: ProblemOf): Promise<TokenClaims> {
    const keys = this.#keys();
    if (keys === undefined) {
      throw new ClocheError("unavailable", "the edge is starting", { retryAfterSeconds: 1 });
    }
    if (token === undefined)
      throw refused("send the sandbox's data plane token as Authorization: Bearer <token>");
    if (token.length > tokenBytes) throw refused("token is too long to be one of ours");
    if (this.#cachedFor !== keys) {
      this.#cache = new Map();
      this.#cachedFor = keys;
    }
    let claims = this.#cache.get(token);
    if (claims === undefined) {
      claims = await readClaims(token, keys);
      if (this.#cache.size >= cachedTokens) this.#cache.delete(this.#cache.keys().next().value as string);
      this.#cache.set(token, claims);
    }
    const problem = problemOf(claims, keys.issuer, this.#nowMs());
    if (problem !== undefined) throw refused(problem);
    return claims as TokenClaims;
  }
}

async function readClaims(token: string, keys: Keys): Promise<unknown> {
  try {
    tokenParts(token);
    const { payload } = await compactVerify(
      token,
      (header) => {
        const key = keys.keys.find(({ kid }) => kid === header.kid);
        if (key === undefined) throw new Error("unknown kid");
        return importJWK(key.jwk, "RS256");
      },
      { algorithms: ["RS256"] },
    );
    return JSON.parse(new TextDecoder().decode(payload)) as unknown;
  } catch (error) {
    throw new ClocheError("unauthenticated", "token is malformed, or not signed by this service with RS256", {
      cause: error,
    });
  }
}
