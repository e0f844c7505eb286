/**
 * How many sandboxes a team has, without those in DELETING. `teams.sandboxes` changes in the transaction that inserts,
 * deletes or removes a record, so records are never counted. A transaction writes it late, just before the rows of
 * hosts, so that transactions of one team wait for each other only while they commit.
 */
import { ClocheError } from "@cloche/protocol";
import type { Kysely } from "kysely";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { Schema } from "./schema.ts";

type Counted = Pick<SandboxRecord, "teamId" | "state">;

export interface Counting {
  before: Counted | undefined;
  after: Counted | undefined;
}

const countOf = (record: Counted | undefined): number =>
  record === undefined || record.state === "SANDBOX_STATE_DELETING" ? 0 : 1;

/** Counts changes of one team. `max`: its limit; 0: none. Throws `resource_exhausted` when the limit is exceeded. */
export async function countSandboxes(db: Kysely<Schema>, all: readonly Counting[], max = 0): Promise<void> {
  const teamId = all[0]?.after?.teamId ?? all[0]?.before?.teamId;
  const more = all.reduce((sum, { before, after }) => sum + countOf(after) - countOf(before), 0);
  if (teamId === undefined || more === 0) return;
  let update = db
    .updateTable("teams")
    .set((e) => ({ sandboxes: e("sandboxes", "+", more) }))
    .where("id", "=", teamId);
  if (max > 0) update = update.where((e) => e(e("sandboxes", "+", more), "<=", max));
  const { numUpdatedRows } = await update.executeTakeFirst();
  if (max > 0 && numUpdatedRows !== 1n) throw await noRoom(db, teamId, more, max);
}

async function noRoom(db: Kysely<Schema>, teamId: string, wanted: number, max: number): Promise<ClocheError> {
  const team = await db.selectFrom("teams").select("sandboxes").where("id", "=", teamId).executeTakeFirst();
  const more = wanted === 1 ? "" : `, and ${wanted} more are asked for`;
  return new ClocheError(
    "resource_exhausted",
    `the team has ${team?.sandboxes ?? 0} sandboxes${more}; at most ${max} are allowed: delete some first`,
    { resource: "quota" },
  );
}
