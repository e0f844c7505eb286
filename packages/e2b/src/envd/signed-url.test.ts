import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import type { Sandboxes } from "./sandboxes.ts";
import { readSignature } from "./signed-url.ts";

const mine = { sandboxId: "sbx-a", apiKey: "k1", token: "token-a" };
const other = { sandboxId: "sbx-b", apiKey: "k2", token: "token-b" };
const sandboxes = {
  signers: async (id: string | undefined) =>
    [mine, other].filter(({ sandboxId }) => id === undefined || id === sandboxId),
} as unknown as Sandboxes;
const inAMinute = Math.floor(Date.now() / 1_000) + 60;

/** As E2B's clients sign. */
function signed(token: string, operation: string, expiration?: number): URLSearchParams {
  const text = `/a b.txt:${operation}:user:${token}${expiration === undefined ? "" : `:${expiration}`}`;
  const signature = `v1_${createHash("sha256").update(text).digest("base64").replace(/=+$/, "")}`;
  const more = expiration === undefined ? {} : { signature_expiration: String(expiration) };
  return new URLSearchParams({ path: "/a b.txt", username: "user", signature, ...more });
}
const read = (query: URLSearchParams, id?: string, operation: "read" | "write" = "read") =>
  readSignature(sandboxes, query, operation, id);

test("a signature finds the sandbox by whose token it was made", async () => {
  expect(await read(signed("token-b", "read"))).toMatchObject({ sandboxId: "sbx-b", apiKey: "k2" });
  expect(await read(signed("token-a", "read", inAMinute), "sbx-a")).toMatchObject({ sandboxId: "sbx-a" });
});

test.each([
  ["another operation's", signed("token-a", "read"), "sbx-a", "write"],
  ["another sandbox's", signed("token-b", "read"), "sbx-a", "read"],
  ["a made-up token's", signed("guess", "read"), undefined, "read"],
] as const)("%s signature is refused", async (_what, query, id, operation) => {
  await expect(read(query, id, operation)).rejects.toThrow("invalid signature");
});

test("one for another path, user or time is refused", async () => {
  for (const [name, value] of [
    ["path", "/etc/shadow"],
    ["username", "root"],
    ["signature_expiration", String(inAMinute + 1)],
  ] as const) {
    const query = signed("token-a", "read", inAMinute);
    query.set(name, value);
    await expect(read(query)).rejects.toThrow("invalid signature");
  }
});

test("an expired one is told so, and so is a time that is none", async () => {
  await expect(read(signed("token-a", "read", inAMinute - 120))).rejects.toThrow(
    "signature is already expired",
  );
  const query = signed("token-a", "read", inAMinute);
  for (const time of ["soon", `${" ".repeat(60_000)}${inAMinute}`, "1e99"]) {
    query.set("signature_expiration", time);
    await expect(read(query)).rejects.toThrow("signature is already expired");
  }
  await expect(read(new URLSearchParams({ path: "/x" }))).rejects.toThrow("missing signature");
});
