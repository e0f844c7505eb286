/** The data plane token: RS256 JWT (spec/contract.md, Authentication; Token). */
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
  const { aud, sandbox_id } = fieldsOf(claims);
  const isOfSandbox = aud === sandboxId && sandbox_id === sandboxId;
  return commonProblem(claims, issuer, nowMs, isOfSandbox ? undefined : "token is not of this sandbox");
}

/** The token in the cookie of a port link: it opens one port of one sandbox, at the edge, and nothing else. */
export interface PortTokenClaims extends TokenClaims {
  /** portAudience(sandbox_id, port): no sandbox's id, so agent and host refuse it. */
  aud: string;
  port: number;
}

export const portAudience = (sandboxId: string, port: number): string => `port:${port}:${sandboxId}`;

/** As claimsProblem, for the token of a port link. */
export function portClaimsProblem(
  claims: unknown,
  issuer: string,
  target: { sandboxId: string; port: number },
  nowMs: number,
): string | undefined {
  const { sandboxId, port } = target;
  const { aud, sandbox_id, port: claimed } = fieldsOf(claims);
  const isOfPort = aud === portAudience(sandboxId, port) && sandbox_id === sandboxId && claimed === port;
  return commonProblem(
    claims,
    issuer,
    nowMs,
    isOfPort ? undefined : "cookie is not of this port; open a new link",
  );
}

const fieldsOf = (claims: unknown): Record<string, unknown> =>
  typeof claims === "object" && claims !== null ? (claims as Record<string, unknown>) : {};

function commonProblem(
  claims: unknown,
  issuer: string,
  nowMs: number,
  audienceProblem: string | undefined,
): string | undefined {
  if (typeof claims !== "object" || claims === null) return "token payload is not a JSON object";
  const { iss, exp, nbf } = fieldsOf(claims);
  if (iss !== issuer) return "token was issued by another service";
  if (audienceProblem !== undefined) return audienceProblem;
  if (typeof exp !== "number" || !Number.isFinite(exp)) return "token has no expiry";
  if (exp * 1000 <= nowMs) return "token is expired; get a fresh one with IssueDataPlaneToken";
  if (typeof nbf !== "number" || nbf - nbfLeewaySeconds > nowMs / 1000) return "token is not valid yet";
  return undefined;
}
