import { expect, it } from "vitest";
import { CheckpointQuota } from "./quota.ts";

const sizes: Record<string, number[]> = { a: [], b: [] };
const quotaOf = (limits: { count: number; bytes: number }) =>
  new CheckpointQuota(limits, async (team) => {
    const all = sizes[team] ?? [];
    return { count: all.length, bytes: all.reduce((sum, bytes) => sum + bytes, 0) };
  });
const refused = (message: RegExp) =>
  expect.objectContaining({
    code: "resource_exhausted",
    resource: "quota",
    message: expect.stringMatching(message),
  });

it("lets a team have so many, those being taken counted too, and not one more", async () => {
  const quota = quotaOf({ count: 3, bytes: 0 });
  sizes["a"] = [1, 1];
  let finish = (): void => undefined;
  const taking = quota.within("a", () => new Promise<void>((resolve) => (finish = resolve)));
  await expect(quota.within("a", async () => undefined)).rejects.toThrow(
    refused(/^the team has 3 checkpoints; at most 3 are allowed: delete some first$/),
  );
  expect(await quota.within("b", async () => "taken")).toBe("taken");
  finish();
  await taking;
  expect(await quota.within("a", async () => "taken"), "the one before took none after all").toBe("taken");
});

it("counts one that failed no longer", async () => {
  const quota = quotaOf({ count: 1, bytes: 0 });
  sizes["a"] = [];
  const failing = quota.within("a", () => Promise.reject(new Error("no disk")));
  await expect(failing).rejects.toThrow("no disk");
  expect(await quota.within("a", async () => "taken")).toBe("taken");
});

it("refuses a new one once those there are take so many bytes, and has no limit at 0", async () => {
  const quota = quotaOf({ count: 0, bytes: 1_024 });
  sizes["a"] = [1_023];
  expect(await quota.within("a", async () => "taken")).toBe("taken");
  sizes["a"] = [1_023, 1];
  await expect(quota.within("a", async () => undefined)).rejects.toThrow(
    refused(/^the team's checkpoints take 1(\.0)? K/),
  );
  sizes["a"] = Array.from({ length: 100 }, () => 1e12);
  expect(await quotaOf({ count: 0, bytes: 0 }).within("a", async () => "taken")).toBe("taken");
});
