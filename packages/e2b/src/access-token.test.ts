import { expect, test } from "vitest";
import { AccessTokens } from "./access-token.ts";

const tokens = new AccessTokens(Buffer.alloc(32, 1));
const id = "sbx-aaaaaaaaaaaaaaaaaaaa";

test("a token opens its own sandbox with its key, and is the same each time", () => {
  const token = tokens.issue("e2b_key", id);
  expect(tokens.open(token, id)).toBe("e2b_key");
  expect(tokens.issue("e2b_key", id)).toBe(token);
  expect(new AccessTokens(Buffer.alloc(32, 1)).open(token, id)).toBe("e2b_key");
  expect(token).not.toContain(Buffer.from("e2b_key").toString("base64url").slice(0, 6));
});

test("tokens of different keys and sandboxes share nothing that could be compared", () => {
  const all = [
    tokens.issue("k1", id),
    tokens.issue("k2", id),
    tokens.issue("k1", "sbx-bbbbbbbbbbbbbbbbbbbb"),
  ];
  expect(new Set(all.map((token) => token.slice(0, 16))).size).toBe(3);
});

test.each([
  ["another sandbox's", tokens.issue("k", "sbx-bbbbbbbbbbbbbbbbbbbb")],
  ["one of another secret", new AccessTokens(Buffer.alloc(32, 2)).issue("k", id)],
  ["a changed one", `${tokens.issue("k", id).slice(0, -2)}AA`],
  ["an empty one", ""],
  ["too short a one", "AAAA"],
  ["a data plane token", "eyJhbGciOiJSUzI1NiJ9.e30.AAAA"],
  ["a long one", "A".repeat(5_000)],
])("%s token opens nothing", (_what, token) => {
  expect(tokens.open(token, id)).toBeUndefined();
});
