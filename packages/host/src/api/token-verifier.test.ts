import { createHmac, randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import { signToken, testKeys } from "../testing/data-plane-caller.ts";
import { verifyToken } from "./token-verifier.ts";

const keys = {
  issuer: testKeys.issuer,
  keys: testKeys.keys.map(({ kid, jwkJson }) => ({ kid, jwk: JSON.parse(jwkJson) })),
};
const id = "sbx-aaaaaaaaaaaaaaaaaaaa";
const nowMs = Date.now();
const now = Math.floor(nowMs / 1000);
const check = (authorization: string | undefined) => () => verifyToken(authorization, keys, id, nowMs);
/** The last of 342 characters has four bits that decode to nothing. */
const respelled = (text: string): string =>
  text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + 1);
const encode = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");

describe("verifyToken", () => {
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
});
