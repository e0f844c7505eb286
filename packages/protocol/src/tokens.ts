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

/** A public verification key, as passed between gateway, hosts, edges and agents. */
export interface VerificationKey {
  kid: string;
  /** RSA public key as JWK. */
  jwk: { kty: string; n: string; e: string };
}

/**
 * Checks all claims, not the signature. Returns a public message that says what is wrong, or undefined. `nowMs`: the
 * wall clock; `sandboxId`: the sandbox whose data plane is used.
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

/** The token in the cookie of a port link: it only opens one port of one sandbox, at the edge. */
export interface PortTokenClaims extends TokenClaims {
  /** portAudience(sandbox_id, port): not a sandbox's id, so agent and host refuse the token. */
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
