import { limits } from "@cloche/protocol";
import { expect, test } from "vitest";
import type { SandboxQuery } from "../database/sandbox-list.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { sandboxPage } from "./sandbox-page.ts";

/** Lists records with the ordinals 1 to `count`, and metadata of so many characters. */
function listOf(count: number, length = 1) {
  const asked: number[] = [];
  const list = async ({ after, limit = 0 }: SandboxQuery): Promise<SandboxRecord[]> => {
    asked.push(limit);
    const from = (after?.ordinal ?? 0) + 1;
    return Array.from({ length: Math.max(0, Math.min(limit, count - from + 1)) }, (_, at) => {
      const metadata = { k: "x".repeat(length - 1) };
      return { ordinal: from + at, name: "n", metadata } as unknown as SandboxRecord;
    });
  };
  return { list, asked };
}
const query: SandboxQuery = { teamId: "team-t", states: [], metadata: {} };

test.each([
  [0, 10, 0, false],
  [10, 10, 10, false],
  [11, 10, 10, true],
  [5_000, 10_000, 5_000, false],
  [5_000, 1_000, 1_000, true],
  [26, 25, 25, true],
])("of %d sandboxes a page of %d has %d", async (count, pageSize, length, hasMore) => {
  const { list } = listOf(count);
  const { sandboxes, next } = await sandboxPage(
    list,
    query,
    { pageSize, pageBytes: limits.pageBytes },
    (record) => record,
  );
  expect(sandboxes.map(({ ordinal }) => ordinal)).toEqual(Array.from({ length }, (_, at) => at + 1));
  expect(next?.ordinal).toBe(hasMore ? length : undefined);
});

test("a page ends before it has more than 4 MiB, and little more is read", async () => {
  const each = 100_000;
  const { list, asked } = listOf(10_000, each);
  const { sandboxes, next } = await sandboxPage(
    list,
    query,
    { pageSize: 10_000, pageBytes: limits.pageBytes },
    (record) => record,
  );
  const fitting = Math.floor(limits.pageBytes / each);
  expect(sandboxes).toHaveLength(fitting);
  expect(next?.ordinal).toBe(fitting);
  expect(asked.reduce((sum, limit) => sum + limit)).toBeLessThan(fitting + 26);
});

test("a list without a page size has all of a team's default quota", async () => {
  const { list } = listOf(10_000, 1_000);
  const bounds = { pageSize: limits.unpagedList, pageBytes: limits.unpagedListBytes };
  const { sandboxes, next } = await sandboxPage(list, query, bounds, (record) => record);
  expect(sandboxes).toHaveLength(10_000);
  expect(next).toBeUndefined();
});
