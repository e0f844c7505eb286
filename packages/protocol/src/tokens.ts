/** The data plane token: RS256 JWT (service-interface.md, Authentication; decisions.md, Token). */
export interface TokenClaims {
  iss: string;
  /** Team id. */
  sub: string;
  /** Sandbox id. */
  aud: string;
  sandbox_id: string;
  iat: number;
  nbf: number;
  exp: number;
  jti: string;
}
export interface TokenHeader {
  alg: "RS256";
  kid: string;
  typ: "JWT";
}

/** Clock skew allowed on `nbf`; none is allowed on `exp`. */
export const nbfLeewaySeconds = 5;

/** A public verification key as gateway, host, edge and agents pass it. */
export interface VerificationKey {
  kid: string;
  /** RSA public key as JWK. */
  jwk: { kty: string; n: string; e: string };
}

/**
 * Checks everything but the signature. Answers what is wrong in public wording, or undefined.
 * `nowMs` is the wall clock; `sandboxId` is whose data plane is asked.
 */
export function claimsProblem(
  claims: unknown,
  issuer: string,
  sandboxId: string,
  nowMs: number,
): string | undefined {
  if (typeof claims !== "object" || claims === null) return "token payload is not a JSON object";
  const { iss, aud, sandbox_id, exp, nbf } = claims as Record<string, unknown>;
  if (iss !== issuer) return "token was issued by another service";
  if (aud !== sandboxId || sandbox_id !== sandboxId) return "token is not of this sandbox";
  if (typeof exp !== "number" || !Number.isFinite(exp)) return "token has no expiry";
  if (exp * 1000 <= nowMs) return "token is expired; get a fresh one with IssueDataPlaneToken";
  if (typeof nbf !== "number" || nbf - nbfLeewaySeconds > nowMs / 1000) return "token is not valid yet";
  return undefined;
}
