import { expect, test } from "vitest";
import { Signers } from "./signers.ts";

const added = (signers: Signers, sandboxId: string, apiKey: string): void =>
  signers.add(sandboxId, apiKey, () => `token of ${apiKey} for ${sandboxId}`);

test("a search has a bound, however many keys were used for however many sandboxes", () => {
  const signers = new Signers();
  for (let key = 0; key < 25; key += 1)
    for (let sandbox = 0; sandbox < 1_000; sandbox += 1) added(signers, `sbx-${sandbox}`, `key-${key}`);
  expect([...signers.all()].length).toBeLessThanOrEqual(1_000);
  expect([...signers.all("sbx-1")].length).toBeLessThanOrEqual(4);
  expect(signers.size).toBe([...signers.all()].length);
});

test("a key with many sandboxes pushes out its own oldest, not those of others", () => {
  const signers = new Signers(10);
  added(signers, "sbx-a", "key-a");
  for (let sandbox = 0; sandbox < 100; sandbox += 1) added(signers, `sbx-${sandbox}`, "key-b");
  expect([...signers.all("sbx-a")]).toHaveLength(1);
  expect([...signers.all("sbx-99")]).toHaveLength(1);
  expect([...signers.all("sbx-0")]).toHaveLength(0);
  expect(signers.size).toBe(10);
});

test("a token is made once, and a deleted sandbox has none", () => {
  const signers = new Signers();
  let made = 0;
  for (let use = 0; use < 3; use += 1) signers.add("sbx-a", "key-a", () => `token ${(made += 1)}`);
  expect(made).toBe(1);
  signers.forget("sbx-a");
  expect([...signers.all()]).toEqual([]);
  expect(signers.size).toBe(0);
});
