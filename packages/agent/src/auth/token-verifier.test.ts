import { createHmac, generateKeyPairSync } from "node:crypto";
import { describe, expect, it } from "vitest";
import { keySet, sandboxId, token } from "../testing/agent-fixture.ts";
import { TokenVerifier } from "./token-verifier.ts";

const verifier = (): TokenVerifier => new TokenVerifier(sandboxId, keySet);
/** The last of 342 characters has four bits that decode to nothing. */
const respelled = (text: string): string =>
  text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + 1);
const nowSeconds = Math.floor(Date.now() / 1000);

describe("TokenVerifier", () => {
  it("accepts a good token, again from its cache, until it expires", () => {
    const good = token({ exp: nowSeconds + 10 });
    const checker = verifier();
    checker.check(good, Date.now());
    checker.check(good, Date.now());
    expect(() => checker.check(good, (nowSeconds + 10) * 1000)).toThrow(/expired/);
    expect(() => checker.check(good, (nowSeconds + 11) * 1000)).toThrow(/expired/);
  });

  const other = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
  const good = token();
  const [header = "", payload = "", signature = ""] = good.split(".");
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const hmac = (head: string): string => {
    const signed = `${head}.${payload}`;
    const key = JSON.stringify(keySet.keys[0]);
    return `${signed}.${createHmac("sha256", key).update(signed).digest("base64url")}`;
  };
  const refused: [string, string][] = [
    ["an API key", "cloche_abc"],
    ["nothing but dots", ".."],
    ["two parts", `${header}.${payload}`],
    ["four parts", `${good}.x`],
    ["another spelling of the same signature", respelled(good)],
    ["padding", `${good}==`],
    ["no algorithm", `${part({ alg: "none", kid: "k1" })}.${payload}.${signature}`],
    ["an HMAC by the public key", hmac(part({ alg: "HS256", kid: "k1" }))],
    ["another RSA algorithm", token({}, { alg: "PS256" })],
    ["an unknown key id", token({}, { kid: "k2" })],
    ["no key id", token({}, { kid: undefined })],
    ["critical extensions", token({}, { crit: ["exp"] })],
    ["another key's signature", token({}, {}, other)],
    ["a changed payload", `${header}.${part({ aud: sandboxId })}.${signature}`],
    ["padding in the signature", `${good}==`],
    ["another sandbox's aud", token({ aud: "sbx-bbbbbbbbbbbbbbbbbbbb" })],
    ["another sandbox's sandbox_id", token({ sandbox_id: "sbx-bbbbbbbbbbbbbbbbbbbb" })],
    ["the token of a port link", token({ aud: `port:3000:${sandboxId}`, port: 3000 })],
    ["an aud array", token({ aud: [sandboxId] })],
    ["another issuer", token({ iss: "https://evil.test" })],
    ["no expiry", token({ exp: undefined })],
    ["an expiry of text", token({ exp: "9999999999" })],
    ["the past", token({ exp: nowSeconds - 1 })],
    ["the future", token({ nbf: nowSeconds + 60 })],
    ["a payload that is no object", `${header}.${part(null)}.${signature}`],
    ["ten kilobytes", `${header}.${"A".repeat(10_000)}.${signature}`],
  ];
  it.each(refused)("refuses %s", (_what, text) => {
    expect(() => verifier().check(text, Date.now())).toThrow(
      expect.objectContaining({ code: "unauthenticated" }),
    );
  });

  it("refuses keys that are too short or no RSA keys", () => {
    const short = generateKeyPairSync("rsa", { modulusLength: 1024 }).publicKey.export({ format: "jwk" });
    const curve = generateKeyPairSync("ec", { namedCurve: "P-256" }).publicKey.export({ format: "jwk" });
    for (const jwkJson of [JSON.stringify(short), JSON.stringify(curve), "{}", "nonsense"]) {
      expect(() => new TokenVerifier(sandboxId, { issuer: "i", keys: [{ kid: "k", jwkJson }] })).toThrow(
        expect.objectContaining({ code: "invalid_argument" }),
      );
    }
  });
});
