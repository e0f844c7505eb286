import { generateKeyPairSync, randomBytes } from "node:crypto";
import { claimsProblem } from "@cloche/protocol";
import { createLocalJWKSet, jwtVerify } from "jose";
import { describe, expect, it } from "vitest";
import { newSigningKey, testSigningKey } from "../testing/gateway-fixture.ts";
import { loadSigningKeys } from "./signing-keys.ts";
import { TokenIssuer } from "./token-issuer.ts";

const nowMs = 1_767_225_600_999;
const issuer = (keys = [testSigningKey()]) =>
  new TokenIssuer({ issuer: "cloche-test", keys, lifetimeSeconds: 60, nowMs: () => nowMs, randomBytes });
const jwks = (one: TokenIssuer) =>
  createLocalJWKSet({ keys: one.verificationKeys.map(({ kid, jwk }) => ({ ...jwk, kid, alg: "RS256" })) });

describe("TokenIssuer", () => {
  it("issues what an independent library accepts, with the decided claims", async () => {
    const tokens = issuer();
    const { jwt, expiresAtUnix } = await tokens.issue("team-1", "sbx-1");
    const { payload, protectedHeader } = await jwtVerify(jwt, jwks(tokens), {
      issuer: "cloche-test",
      audience: "sbx-1",
      algorithms: ["RS256"],
      currentDate: new Date(nowMs),
    });
    expect(protectedHeader).toEqual({ alg: "RS256", kid: "test-key", typ: "JWT" });
    expect(payload).toMatchObject({
      sub: "team-1",
      sandbox_id: "sbx-1",
      iat: 1_767_225_600,
      nbf: 1_767_225_600,
    });
    expect(payload.exp).toBe(expiresAtUnix);
    expect(expiresAtUnix).toBe(1_767_225_660);
    expect(claimsProblem(payload, "cloche-test", "sbx-1", nowMs)).toBeUndefined();
    expect(claimsProblem(payload, "cloche-test", "sbx-2", nowMs)).toBeDefined();
    expect(claimsProblem(payload, "cloche-test", "sbx-1", nowMs + 60_000)).toBeDefined();
  });

  it("never gives the same token twice", async () => {
    const tokens = issuer();
    const made = await Promise.all(Array.from({ length: 20 }, () => tokens.issue("team-1", "sbx-1")));
    expect(new Set(made.map(({ jwt }) => jwt)).size).toBe(20);
  });

  it("signs with the newest key and gives out the public halves only", async () => {
    const tokens = issuer([newSigningKey("b"), testSigningKey()]);
    expect(tokens.verificationKeys.map(({ kid }) => kid)).toEqual(["b", "test-key"]);
    for (const { jwk } of tokens.verificationKeys)
      expect(Object.keys(jwk).toSorted()).toEqual(["e", "kty", "n"]);
    const { protectedHeader } = await jwtVerify((await tokens.issue("t", "s")).jwt, jwks(tokens), {
      currentDate: new Date(nowMs),
    });
    expect(protectedHeader.kid).toBe("b");
  });

  it("keeps signing with the old key while others learn of the new, and when they cannot", async () => {
    const tokens = issuer();
    const kidOf = async () => {
      const { jwt } = await tokens.issue("t", "s");
      return JSON.parse(Buffer.from(jwt.split(".")[0] ?? "", "base64url").toString()).kid as string;
    };
    const next = newSigningKey("next");
    await expect(
      tokens.rotate([next], async () => {
        throw new Error("the host is away");
      }),
    ).rejects.toThrow("the host is away");
    expect(await kidOf()).toBe("test-key");
    const announced: string[][] = [];
    await tokens.rotate([next], async (keys) => {
      announced.push(keys.map(({ kid }) => kid));
      if (announced.length === 1) expect(await kidOf()).toBe("test-key");
    });
    expect(announced).toEqual([["next", "test-key"], ["next"]]);
    expect(await kidOf()).toBe("next");
    // A key that is only added is announced once: a failure afterwards would come when it signs already.
    await tokens.rotate([newSigningKey("last"), next], async (keys) => {
      announced.push(keys.map(({ kid }) => kid));
    });
    expect(announced.slice(2)).toEqual([["last", "next"]]);
    expect(await kidOf()).toBe("last");
  });
});

describe("loadSigningKeys", () => {
  const pem = (type: "rsa" | "ec") => {
    const { privateKey } =
      type === "rsa"
        ? generateKeyPairSync("rsa", { modulusLength: 1_024 })
        : generateKeyPairSync("ec", { namedCurve: "P-256" });
    return privateKey.export({ type: "pkcs8", format: "pem" }) as string;
  };
  it.each([
    ["no key", [], /no signing key/],
    [
      "a short key",
      [{ kid: "short", privateKeyPem: pem("rsa") }],
      /signing key short must be RSA of 2048 bits/,
    ],
    ["a key of another kind", [{ kid: "ec", privateKeyPem: pem("ec") }], /signing key ec must be RSA/],
  ])("refuses %s", (_name, keys, message) => {
    expect(() => loadSigningKeys(keys)).toThrow(message);
  });
});
