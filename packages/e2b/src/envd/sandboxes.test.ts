/** What one team's use takes from the others in the memory that all share. */
import { nodeFetch } from "@cloche/sdk/node";
import { expect, test } from "vitest";
import { AccessTokens } from "../access-token.ts";
import { heldBytesMax } from "./held-bytes.ts";
import { Sandboxes } from "./sandboxes.ts";

const sandboxesOf = (mostOpen?: number): Sandboxes =>
  new Sandboxes({
    gatewayUrl: "http://127.0.0.1:1",
    fetch: nodeFetch({}),
    domain: "x.test",
    tokens: new AccessTokens(Buffer.alloc(32)),
    ownKey: "own",
    teamOf: async (apiKey) => (apiKey === "gone" ? undefined : apiKey.split("-", 1)[0]),
    ...(mostOpen !== undefined && { mostOpen }),
  });

test("a team has a share of the bytes held for clients, whatever its sandboxes and keys", async () => {
  const sandboxes = sandboxesOf();
  const { ofTeam, ofSandbox } = heldBytesMax;
  for (let count = 0; count < ofTeam / ofSandbox; count += 1) {
    const { held } = await sandboxes.open(`sbx-${count >> 1}`, `team1-${count & 1}`);
    expect(held.take(ofSandbox)).toBe(true);
  }
  expect((await sandboxes.open("sbx-0", "team1-5")).held.take(1)).toBe(false);
  expect((await sandboxes.open("sbx-7", "team1-1")).held.take(1)).toBe(false);
  expect((await sandboxes.open("sbx-9", "team2-a")).held.take(heldBytesMax.ofSandbox)).toBe(true);
});

test("a team that opens many loses its own oldest, never another's", async () => {
  const sandboxes = sandboxesOf(3);
  const other = await sandboxes.open("sbx-9", "team2-a");
  const first = await sandboxes.open("sbx-1", "team1-a");
  for (let count = 2; count < 6; count += 1) await sandboxes.open(`sbx-${count}`, "team1-a");
  expect(await sandboxes.open("sbx-9", "team2-a")).toBe(other);
  expect(await sandboxes.open("sbx-1", "team1-a")).not.toBe(first);
});

test("one that is opened twice at once is one, and a key that is not valid opens none", async () => {
  const sandboxes = sandboxesOf();
  const [one, again] = await Promise.all([
    sandboxes.open("sbx-1", "team1-a"),
    sandboxes.open("sbx-1", "team1-a"),
  ]);
  expect(one).toBe(again);
  await expect(sandboxes.open("sbx-1", "gone")).rejects.toThrow("not valid");
});
