import { createHmac, createSign, generateKeyPairSync, randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { bearerToken, TokenVerifier } from "./token-verifier.ts";

const { privateKey, publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const jwk = publicKey.export({ format: "jwk" }) as { kty: string; n: string; e: string };
const keys = { issuer: "https://gateway.test", keys: [{ kid: "test-key", jwk }] };
const id = "sbx-aaaaaaaaaaaaaaaaaaaa";
const encode = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
const nowMs = Date.now();
const now = Math.floor(nowMs / 1000);
const verifier = new TokenVerifier(
  () => keys,
  () => nowMs,
);
const check = (authorization: string | undefined) => () => verifier.verify(bearerToken(authorization), id);

function signToken(sandboxId: string, claims: object = {}): string {
  const body = { iss: keys.issuer, sub: "team-t", aud: sandboxId, sandbox_id: sandboxId, iat: now, nbf: now };
  const text = `${encode({ alg: "RS256", kid: "test-key", typ: "JWT" })}.${encode({ ...body, exp: now + 600, jti: "j", ...claims })}`;
  return `${text}.${createSign("RSA-SHA256").update(text).sign(privateKey, "base64url")}`;
}
/** The last of 342 characters has four bits that decode to nothing. */
const respelled = (text: string): string =>
  text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + 1);

describe("TokenVerifier", () => {
  it("accepts a token of the sandbox", () => {
    expect(check(`Bearer ${signToken(id)}`)).not.toThrow();
    expect(check(`bearer  ${signToken(id)} `)).not.toThrow();
  });

  it.each([
    ["none", undefined, /send the sandbox's data plane token/],
    ["another scheme", `Basic ${signToken(id)}`, /send the sandbox's data plane token/],
    ["no token", "Bearer nonsense", /malformed/],
    ["four parts", `Bearer ${signToken(id)}.x`, /malformed/],
    ["another spelling of the same signature", `Bearer ${respelled(signToken(id))}`, /malformed/],
    ["padding", `Bearer ${signToken(id)}==`, /malformed/],
    ["too long", `Bearer ${"x".repeat(9_000)}`, /too long/],
    ["another sandbox's", `Bearer ${signToken("sbx-b")}`, /not of this sandbox/],
    ["another audience", `Bearer ${signToken(id, { aud: "sbx-b" })}`, /not of this sandbox/],
    [
      "a port link's",
      `Bearer ${signToken(id, { aud: `port:3000:${id}`, port: 3000 })}`,
      /not of this sandbox/,
    ],
    ["another issuer", `Bearer ${signToken(id, { iss: "https://elsewhere" })}`, /another service/],
    ["expired", `Bearer ${signToken(id, { exp: now })}`, /expired/],
    ["not valid yet", `Bearer ${signToken(id, { nbf: now + 60 })}`, /not valid yet/],
  ])("refuses: %s", (_name, authorization, message) => {
    expect(check(authorization)).toThrow(message);
    try {
      check(authorization)();
    } catch (error) {
      expect(error).toMatchObject({ code: "unauthenticated" });
    }
  });

  it("refuses a changed payload, an unsigned token, and one signed with the public key as a secret", () => {
    const [head = "", , signature = ""] = signToken(id).split(".");
    const claims = { iss: keys.issuer, aud: id, sandbox_id: id, exp: now + 60, nbf: now, sub: "x" };
    expect(check(`Bearer ${head}.${encode(claims)}.${signature}`)).toThrow(/malformed, or not signed/);
    expect(check(`Bearer ${encode({ alg: "none", kid: "test-key" })}.${encode(claims)}.`)).toThrow(
      /malformed/,
    );
    const text = `${encode({ alg: "HS256", kid: "test-key" })}.${encode(claims)}`;
    const forged = createHmac("sha256", JSON.stringify(keys.keys[0]?.jwk)).update(text).digest("base64url");
    expect(check(`Bearer ${text}.${forged}`)).toThrow(/malformed/);
    const other = `${encode({ alg: "RS256", kid: "other" })}.${encode(claims)}.${randomBytes(256).toString("base64url")}`;
    expect(check(`Bearer ${other}`)).toThrow(/malformed/);
  });

  it("opens a port by the token of its link alone", () => {
    const target = { sandboxId: id, port: 3000 };
    const token = signToken(id, { aud: `port:3000:${id}`, port: 3000 });
    expect(verifier.verifyForPort(token, target)).toMatchObject({ sandbox_id: id });
    expect(() => verifier.verifyForPort(token, { ...target, port: 3001 })).toThrow(/not of this port/);
    expect(() => verifier.verifyForPort(signToken(id), target)).toThrow(/not of this port/);
  });

  it("forgets what other keys had signed, and says so while there are none", () => {
    let current: typeof keys | undefined = keys;
    const later = new TokenVerifier(
      () => {
        if (current === undefined) throw new Error("no keys yet");
        return current;
      },
      () => nowMs,
    );
    const token = signToken(id);
    expect(later.verify(token, id)).toMatchObject({ jti: "j" });
    current = { ...keys, keys: [] };
    expect(() => later.verify(token, id)).toThrow(/not signed by this service/);
    current = undefined;
    expect(() => later.verify(token, id)).toThrow("no keys yet");
  });
});
