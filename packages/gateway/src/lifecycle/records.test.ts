import { afterEach, beforeEach, expect, it } from "vitest";
import { type Database, openSqlite } from "../database/database.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { anAuditEntry, anOperation, aSandbox } from "../testing/database-records.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { gatewayLimits } from "../limits.ts";
import { Records } from "./records.ts";

let db: Database;
let records: Records;
let known: Map<string, SandboxRecord>;
beforeEach(async () => {
  const clock = new FakeClock();
  db = await openSqlite(":memory:", clock);
  await db.teams.insert({ id: "team-a", name: "A", createdAtMs: 0 });
  records = new Records(db.sandboxes, () => clock.nowMs());
  known = new Map();
  records.listen((id, record) => void (record === undefined ? known.delete(id) : known.set(id, record)));
});
afterEach(() => db.close());

const put = async (count: number): Promise<SandboxRecord[]> => {
  const all = Array.from({ length: count }, () => aSandbox());
  const rows = all.map((record) => ({
    record,
    begin: anOperation({ sandboxId: record.id }),
    audit: anAuditEntry(),
  }));
  await db.sandboxes.insert(rows);
  return all;
};
const removed = async (record: SandboxRecord): Promise<void> => {
  const operation = await db.operations.ofSandbox(record.id);
  if (operation !== undefined) await records.remove(record, { end: operation });
};

it("all are told, over several pages, and those that are gone since", async () => {
  const all = await put(gatewayLimits.recordsPage + 10);
  const gone = aSandbox();
  known.set(gone.id, gone);
  await records.readAll(known.keys());
  expect([...known.keys()].toSorted()).toEqual(all.map(({ id }) => id).toSorted());
});

it("one that is removed while its page is being read does not come back", async () => {
  const [record] = await put(1);
  if (record === undefined) throw new Error("nothing was put");
  known.set(record.id, record);
  const page = db.sandboxes.page.bind(db.sandboxes);
  db.sandboxes.page = async (...query) => {
    const found = await page(...query);
    if (found.length > 0) await removed(record);
    return found;
  };
  await records.readAll(known.keys());
  expect(known.size).toBe(0);
});
