// Tokens that are nearly right, and not at all, before the verifier of owners' ones (of edge and host), and inner ones before the
// agent: each accepts exactly those that the contract says are valid, and throws nothing but `unauthenticated`.
import { createHmac, generateKeyPairSync, sign } from "node:crypto";
import { channelKeyOf, InnerTokens, TokenVerifier } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import fc from "fast-check";
import { expect, test } from "vitest";
import { TokenVerifier as AgentVerifier } from "../../packages/agent/src/auth/token-verifier.ts";
import { ChannelKeys } from "../../packages/agent/src/auth/channel-keys.ts";
import { patience, plan } from "./seed.ts";

const sandboxId = "sbx-aaaaaaaaaaaaaaaaaaaa";
const issuer = "https://gateway.test";
const nowMs = 1_800_000_000_000;
const now = nowMs / 1_000;
const pairs = ["k1", "k2"].map((kid) => ({ kid, ...generateKeyPairSync("rsa", { modulusLength: 2048 }) }));
const stranger = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
const jwks = pairs.map(({ kid, publicKey }) => ({
  kid,
  jwk: publicKey.export({ format: "jwk" }) as { kty: string; n: string; e: string },
}));
const channelKey = channelKeyOf("this machine's secret");
const agent = new AgentVerifier(sandboxId, issuer, new ChannelKeys(channelKey.toString("hex")));
const keys = { issuer, keys: jwks };
const owners = new TokenVerifier(
  () => keys,
  () => nowMs,
);
const verifiers: Record<string, (token: string) => unknown> = {
  "edge and host": (token) => owners.verify(token, sandboxId),
};

async function verdict(check: (token: string) => unknown, token: string): Promise<boolean> {
  try {
    await check(token);
    return true;
  } catch (error) {
    expect(error).toBeInstanceOf(ClocheError);
    expect((error as ClocheError).code).toBe("unauthenticated");
    return false;
  }
}

const part = (value: unknown): string => Buffer.from(JSON.stringify(value) ?? "").toString("base64url");
const junk = fc.oneof(
  fc.constantFrom<unknown>(null, "", 0, -1, true, [], {}, 1e300, "9999999999"),
  fc.jsonValue(),
);
/** Mostly what is right, so that one wrong thing at a time is what decides. */
const mostly = <T>(right: T, ...wrong: unknown[]) =>
  fc.oneof(
    { weight: 12, arbitrary: fc.constant<unknown>(right) },
    { weight: 1, arbitrary: fc.constantFrom(...wrong) },
    { weight: 1, arbitrary: junk },
  );
const header = fc.record({
  alg: mostly("RS256", "none", "HS256", "RS384", "PS256", "ES256", "rs256", ["RS256"]),
  kid: mostly("k1", "k2", "k3", "__proto__", "../k1", "k1\0", ["k1"]),
  typ: mostly("JWT", "jwt"),
});
const claims = fc.record({
  iss: mostly(issuer, "https://evil.test", `${issuer}/`),
  aud: mostly(sandboxId, [sandboxId], "sbx-bbbbbbbbbbbbbbbbbbbb", sandboxId.toUpperCase()),
  sandbox_id: mostly(sandboxId, [sandboxId], "sbx-bbbbbbbbbbbbbbbbbbbb"),
  exp: mostly(now + 60, now, now - 1, now + 0.5, String(now + 60), -now),
  nbf: mostly(now - 60, now, now + 5, now + 6, String(now)),
});
type Signer = (text: string) => string;
const rsa =
  (key: typeof stranger): Signer =>
  (text) =>
    sign("RSA-SHA256", Buffer.from(text), key).toString("base64url");
const signers: [string, Signer][] = [
  ...pairs.map(({ kid, privateKey }): [string, Signer] => [kid, rsa(privateKey)]),
  ["stranger", rsa(stranger)],
  ["none", () => ""],
  // The public key as an HMAC secret, in each form that a library could take it for.
  ...pairs.flatMap(({ publicKey }, index) =>
    [publicKey.export({ type: "spki", format: "pem" }).toString(), JSON.stringify(jwks[index]?.jwk)].map(
      (secret): [string, Signer] => [
        "hmac",
        (text) => createHmac("sha256", secret).update(text).digest("base64url"),
      ],
    ),
  ),
  [
    "SHA-1",
    (text) =>
      sign("RSA-SHA1", Buffer.from(text), pairs[0]?.privateKey as typeof stranger).toString("base64url"),
  ],
];
const signer = fc.oneof(
  { weight: 3, arbitrary: fc.constant(signers[0]) },
  { weight: 1, arbitrary: fc.constantFrom(...signers) },
);

/** What the contract says (spec/contract.md, Token), from the values themselves. */
function isValid(
  head: { alg: unknown; kid: unknown },
  body: Record<string, unknown>,
  signedBy: string,
): boolean {
  const { iss, aud, sandbox_id, exp, nbf } = body;
  return (
    head.alg === "RS256" &&
    head.kid === signedBy &&
    iss === issuer &&
    aud === sandboxId &&
    sandbox_id === sandboxId &&
    typeof exp === "number" &&
    exp > now &&
    typeof nbf === "number" &&
    nbf - 5 <= now
  );
}

test("each accepts what the contract says, and nothing else", { timeout: patience(120_000) }, async () => {
  let accepted = 0;
  await fc.assert(
    fc.asyncProperty(header, claims, signer, async (head, body, signing) => {
      const [signedBy, signText] = signing as [string, Signer];
      const text = `${part(head)}.${part(body)}`;
      const token = `${text}.${signText(text)}`;
      const right = isValid(head, body, signedBy);
      if (right) accepted += 1;
      for (const [name, check] of Object.entries(verifiers))
        expect(await verdict(check, token), name).toBe(right);
    }),
    plan(2_000),
  );
  expect(accepted, "some are right, or this proves nothing").toBeGreaterThan(20);
});

test("each refuses every other spelling of a good token", async () => {
  const [right, signText] = signers[0] as [string, Signer];
  const body = { iss: issuer, aud: sandboxId, sandbox_id: sandboxId, exp: now + 60, nbf: now };
  const text = `${part({ alg: "RS256", kid: right, typ: "JWT" })}.${part(body)}`;
  const token = `${text}.${signText(text)}`;
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const spellings = [...alphabet].map((last) => token.slice(0, -1) + last);
  for (const [name, check] of Object.entries(verifiers)) {
    const accepted: string[] = [];
    for (const spelling of [...spellings, `${token}=`, `${token}==`, token.replaceAll("_", "/")])
      if (await verdict(check, spelling)) accepted.push(spelling);
    expect(new Set(accepted), name).toEqual(new Set([token]));
  }
});

test("no text that is no token of ours is accepted, nor does it upset anybody", {
  timeout: 120_000,
}, async () => {
  const text = `${part({ alg: "RS256", kid: "k1" })}.${part({ iss: issuer, aud: sandboxId, sandbox_id: sandboxId, exp: now + 60, nbf: now })}`;
  const good = `${text}.${rsa(pairs[0]?.privateKey as typeof stranger)(text)}`;
  for (const check of Object.values(verifiers)) expect(await verdict(check, good)).toBe(true);
  const edit = fc.tuple(fc.nat(good.length), fc.nat(4), fc.string({ unit: "binary", maxLength: 4 }));
  const changed = fc.array(edit, { minLength: 1, maxLength: 3 }).map((edits) => {
    let token = good;
    for (const [at, cut, inserted] of edits) token = token.slice(0, at) + inserted + token.slice(at + cut);
    return token;
  });
  const bytes = (token: string): string =>
    token
      .split(".")
      .map((one) => Buffer.from(one, "base64url").toString("hex"))
      .join(".");
  await fc.assert(
    fc.asyncProperty(fc.oneof(changed, fc.string({ unit: "binary", maxLength: 200 })), async (token) => {
      // The last letter of a part holds bits that no decoder reads.
      fc.pre(bytes(token) !== bytes(good));
      for (const [name, check] of Object.entries(verifiers))
        expect(await verdict(check, token), name).toBe(false);
    }),
    plan(2_000),
  );
});

test("the agent accepts inner tokens of its own machine, and nothing else; edge and host refuse each of them", async () => {
  const ours = new InnerTokens(channelKey);
  const theirs = new InnerTokens(channelKeyOf("another machine's secret"));
  let accepted = 0;
  const whose = fc.oneof(
    { weight: 4, arbitrary: fc.constant(ours) },
    { weight: 1, arbitrary: fc.constant(theirs) },
  );
  await fc.assert(
    fc.asyncProperty(claims, whose, async (body, maker) => {
      const token = maker.sign(body as never);
      const right = maker === ours && isValid({ alg: "RS256", kid: "" }, body, "");
      if (right) accepted += 1;
      expect(await verdict((text) => agent.check(text, nowMs), token)).toBe(right);
      for (const [name, check] of Object.entries(verifiers))
        expect(await verdict(check, token), name).toBe(false);
    }),
    plan(1_000),
  );
  expect(accepted, "some are right, or this proves nothing").toBeGreaterThan(20);
  const text = `${part({ alg: "RS256", kid: "k1" })}.${part({ iss: issuer, aud: sandboxId, sandbox_id: sandboxId, exp: now + 60, nbf: now })}`;
  const owners = `${text}.${rsa(pairs[0]?.privateKey as typeof stranger)(text)}`;
  expect(await verdict((token) => agent.check(token, nowMs), owners)).toBe(false);
});
