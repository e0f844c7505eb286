// The refusals that no route may lack, made for every route rather than written: each way a caller can fail to be who it
// says, against each data plane route and each gateway method. All must answer 401 `unauthenticated`.
import { createHmac, createPrivateKey, createPublicKey, createSign, generateKeyPairSync } from "node:crypto";
import type { TestSandbox } from "./session.ts";
import type { Target } from "./wire.ts";

export interface Refusal {
  name: string;
  /** The Authorization header; undefined: none is sent. */
  authorization: string | undefined;
}

/** A path of each data plane route, with something in the place of its parameters. */
export function examplePath(path: string): string {
  const filled = path
    .replace(":name", "web")
    .replace(":port", "8080")
    .replace(":id", "ckpt-00000000000000000000")
    .replace("*", "some/key");
  return filled.startsWith("/v1/files") ? `${filled}?path=%2Fetc%2Fhostname` : filled;
}

/** Credentials that a gateway method must refuse. */
export function gatewayRefusals(target: Target, sandbox: TestSandbox): Refusal[] {
  return [
    { name: "no key", authorization: undefined },
    { name: "an empty key", authorization: "Bearer " },
    { name: "a key that was never issued", authorization: `Bearer ${scrambled(target.apiKey)}` },
    { name: "a cut key", authorization: `Bearer ${target.apiKey.slice(0, -1)}` },
    { name: "the key as basic auth", authorization: `Basic ${base64(`x:${target.apiKey}`)}` },
    { name: "a data plane token", authorization: `Bearer ${sandbox.token}` },
  ];
}

/** Credentials that a data plane route of `sandbox` must refuse; `other` is another RUNNING sandbox of the same team. */
export function dataPlaneRefusals(
  target: Target,
  sandbox: TestSandbox,
  other: TestSandbox,
  nowMs: number,
): Refusal[] {
  const [header = "", payload = "", signature = ""] = sandbox.token.split(".");
  const claims = JSON.parse(Buffer.from(payload, "base64url").toString()) as Record<string, unknown>;
  const { kid } = JSON.parse(Buffer.from(header, "base64url").toString()) as { kid: string };
  const stranger = generateKeyPairSync("rsa", { modulusLength: 2_048 }).privateKey;
  const flipped = `${signature.slice(0, -2)}${signature.endsWith("AA") ? "BB" : "AA"}`;
  const refusals = [
    { name: "no token", authorization: undefined },
    { name: "an empty token", authorization: "Bearer " },
    { name: "garbage", authorization: "Bearer not-a-token" },
    { name: "garbage in three parts", authorization: "Bearer a.b.c" },
    { name: "the token as basic auth", authorization: `Basic ${base64(`x:${sandbox.token}`)}` },
    { name: "the API key", authorization: `Bearer ${target.apiKey}` },
    { name: "another sandbox's token", authorization: `Bearer ${other.token}` },
    { name: "a changed signature", authorization: `Bearer ${header}.${payload}.${flipped}` },
    { name: "no signature", authorization: `Bearer ${header}.${payload}.` },
    {
      name: "changed claims under the old signature",
      authorization: `Bearer ${header}.${encode({ ...claims, exp: Number(claims["exp"]) + 1 })}.${signature}`,
    },
    {
      name: "alg none",
      authorization: `Bearer ${encode({ alg: "none", kid, typ: "JWT" })}.${payload}.`,
    },
    {
      name: "a stranger's key under our key id",
      authorization: `Bearer ${signed({ alg: "RS256", kid, typ: "JWT" }, claims, stranger)}`,
    },
  ];
  return target.signingKey
    ? [...refusals, ...signedRefusals(target.signingKey, claims, other.id, nowMs)]
    : refusals;
}

/** Tokens with a true signature of the service that must be refused all the same. */
function signedRefusals(
  { kid, privateKeyPem }: { kid: string; privateKeyPem: string },
  claims: Record<string, unknown>,
  otherId: string,
  nowMs: number,
): Refusal[] {
  const key = createPrivateKey(privateKeyPem);
  const publicPem = createPublicKey(key).export({ type: "spki", format: "pem" }) as string;
  const now = Math.floor(nowMs / 1000);
  const { exp: _exp, ...withoutExp } = claims;
  const { nbf: _nbf, ...withoutNbf } = claims;
  const { aud: _aud, ...withoutAud } = claims;
  const header = { alg: "RS256", kid, typ: "JWT" };
  const hsHead = `${encode({ ...header, alg: "HS256" })}.${encode(claims)}`;
  const hs256 = `${hsHead}.${createHmac("sha256", publicPem).update(hsHead).digest("base64url")}`;
  const variants: [string, Record<string, unknown>][] = [
    ["an expired token", { ...claims, iat: now - 20, nbf: now - 20, exp: now - 1 }],
    ["a token that expires now", { ...claims, exp: now }],
    ["a token that is not valid yet", { ...claims, nbf: now + 60 }],
    ["another sandbox's audience", { ...claims, aud: otherId }],
    ["another sandbox's id under our audience", { ...claims, sandbox_id: otherId }],
    ["another issuer", { ...claims, iss: "somebody-else" }],
    ["a token without expiry", withoutExp],
    ["a token without nbf", withoutNbf],
    ["a token without audience", withoutAud],
    ["an expiry that is text", { ...claims, exp: String(claims["exp"]) }],
  ];
  return [
    { name: "HS256 with the public key as its secret", authorization: `Bearer ${hs256}` },
    {
      name: "RS512 in place of RS256",
      authorization: `Bearer ${signed({ ...header, alg: "RS512" }, claims, key, "sha512")}`,
    },
    {
      name: "an unknown key id",
      authorization: `Bearer ${signed({ ...header, kid: "nobody" }, claims, key)}`,
    },
    ...variants.map(([name, changed]) => ({
      name,
      authorization: `Bearer ${signed(header, changed, key)}`,
    })),
  ];
}

type SigningKey = Parameters<ReturnType<typeof createSign>["sign"]>[0];

/** A compact JWS of any header and claims: what an attacker could make. */
export function signed(header: object, claims: object, key: SigningKey, hash = "sha256"): string {
  const head = `${encode(header)}.${encode(claims)}`;
  return `${head}.${createSign(hash).update(head).sign(key).toString("base64url")}`;
}

const base64 = (text: string): string => Buffer.from(text).toString("base64");
const encode = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
/** Another key of the same shape. */
const scrambled = (key: string): string =>
  key.slice(0, 8) +
  key.slice(8).replaceAll(/[a-y]/g, (letter) => String.fromCharCode(letter.charCodeAt(0) + 1));
