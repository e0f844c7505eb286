import { generateKeyPairSync, sign } from "node:crypto";
import { describe, expect, it } from "vitest";
import { ChannelKeys, channelKeyOf } from "./channel-keys.ts";
import { controlSecret, issuer, sandboxId, token } from "../testing/agent-fixture.ts";
import { TokenVerifier } from "./token-verifier.ts";

const keys = (): ChannelKeys => new ChannelKeys(channelKeyOf(controlSecret).toString("hex"));
const verifier = (): TokenVerifier => new TokenVerifier(sandboxId, issuer, keys());
/** The last of 43 characters has two bits that decode to nothing. */
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

  const other = channelKeyOf("another machine's secret");
  const good = token();
  const [header = "", payload = "", mac = ""] = good.split(".");
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const owners = (): string => {
    const signed = `${part({ alg: "RS256", kid: "k1", typ: "JWT" })}.${payload}`;
    return `${signed}.${sign("RSA-SHA256", Buffer.from(signed), privateKey).toString("base64url")}`;
  };
  const refused: [string, string][] = [
    ["an API key", "cloche_abc"],
    ["nothing but dots", ".."],
    ["two parts", `${header}.${payload}`],
    ["four parts", `${good}.x`],
    ["another spelling of the same MAC", respelled(good)],
    ["no algorithm", `${part({ alg: "none", typ: "cloche-inner" })}.${payload}.${mac}`],
    ["an owner's own token", owners()],
    ["another algorithm", token({}, { alg: "HS512" })],
    ["another type", token({}, { typ: "JWT" })],
    ["no type", token({}, { typ: undefined })],
    ["the MAC cut short", `${header}.${payload}.${mac.slice(0, 20)}`],
    ["a tunnel's", token({ port: 8000 })],
    ["critical extensions", token({}, { crit: ["exp"] })],
    ["another machine's key", token({}, {}, other)],
    ["a changed payload", `${header}.${part({ aud: sandboxId })}.${mac}`],
    ["padding in the MAC", `${good}==`],
    ["another sandbox's aud", token({ aud: "sbx-bbbbbbbbbbbbbbbbbbbb" })],
    ["another sandbox's sandbox_id", token({ sandbox_id: "sbx-bbbbbbbbbbbbbbbbbbbb" })],
    ["the token of a port link", token({ aud: `port:3000:${sandboxId}`, port: 3000 })],
    ["an aud array", token({ aud: [sandboxId] })],
    ["another issuer", token({ iss: "https://evil.test" })],
    ["no expiry", token({ exp: undefined })],
    ["an expiry of text", token({ exp: "9999999999" })],
    ["the past", token({ exp: nowSeconds - 1 })],
    ["the future", token({ nbf: nowSeconds + 60 })],
    ["a payload that is no object", `${header}.${part(null)}.${mac}`],
    ["ten kilobytes", `${header}.${"A".repeat(10_000)}.${mac}`],
  ];
  it.each(refused)("refuses %s", (_what, text) => {
    expect(() => verifier().check(text, Date.now())).toThrow(
      expect.objectContaining({ code: "unauthenticated" }),
    );
  });

  it("opens a tunnel to the port that the token names, and to no other", () => {
    const tunnel = token({ port: 8000 });
    verifier().check(tunnel, Date.now(), 8000);
    for (const [text, port] of [
      [tunnel, 8001],
      [token(), 8000],
      [token({ port: "8000" }), 8000],
    ] as const)
      expect(() => verifier().check(text, Date.now(), port)).toThrow(/another route, or another port/);
  });

  it("forgets what it has verified when the key is replaced", () => {
    const replaced = keys();
    const checker = new TokenVerifier(sandboxId, issuer, replaced);
    const good = token();
    checker.check(good, Date.now());
    replaced.replace("the next secret");
    expect(() => checker.check(good, Date.now())).toThrow(/made for another machine/);
    checker.check(token({}, {}, channelKeyOf("the next secret")), Date.now());
  });
});
