/** Lists of a team's sandboxes: filter, order and pages. */
import type { SandboxState } from "@cloche/protocol";
import { type Kysely, sql } from "kysely";
import { type SandboxRecord, sandboxFromRow } from "./sandbox-record.ts";
import type { Schema } from "./schema.ts";

export interface SandboxQuery {
  teamId: string;
  states: readonly SandboxState[];
  metadata: Readonly<Record<string, string>>;
  /** Only names that begin with this text. */
  namePrefix?: string;
  /** Default: newest first. */
  order?: SandboxOrder;
  /** Only sandboxes behind this one, in that order. */
  after?: SandboxPosition;
  limit?: number;
}

export interface SandboxOrder {
  /** Sandboxes with the same name are sorted by age. */
  by: "created_at" | "name";
  isDescending: boolean;
}

const newestFirst: SandboxOrder = { by: "created_at", isDescending: true };

/** The position of a sandbox in a list. New sandboxes change no other position. */
export type SandboxPosition = Pick<SandboxRecord, "name" | "ordinal">;

export async function listSandboxes(db: Kysely<Schema>, query: SandboxQuery): Promise<SandboxRecord[]> {
  const { by, isDescending } = query.order ?? newestFirst;
  const direction = isDescending ? "desc" : "asc";
  let select = db.selectFrom("sandboxes as s").selectAll("s").where("team_id", "=", query.teamId);
  if (by === "name") select = select.orderBy("name", direction);
  select = select.orderBy("ordinal", direction);
  if (query.states.length > 0) select = select.where("state", "in", query.states);
  if (query.namePrefix) {
    const end = behindPrefix(query.namePrefix);
    select = select.where("name", ">=", query.namePrefix);
    if (end !== undefined) select = select.where("name", "<", end);
  }
  if (query.after !== undefined) {
    const { name, ordinal } = query.after;
    const behind = sql.raw(isDescending ? "<" : ">");
    const row = by === "name" ? sql`(s.name, s.ordinal)` : sql`s.ordinal`;
    const last = by === "name" ? sql`(${name}, cast(${ordinal} as bigint))` : sql`cast(${ordinal} as bigint)`;
    select = select.where(sql<boolean>`${row} ${behind} ${last}`);
  }
  if (query.limit !== undefined) select = select.limit(query.limit);
  for (const [key, value] of Object.entries(query.metadata)) {
    select = select.where(({ exists, selectFrom }) =>
      exists(
        selectFrom("sandbox_metadata as m")
          .select("m.key")
          .whereRef("m.sandbox_id", "=", "s.id")
          .where("m.key", "=", key)
          .where("m.value", "=", value),
      ),
    );
  }
  return (await select.execute()).map(sandboxFromRow);
}

/** The least text after all texts that begin with `prefix`, in byte order; undefined: there is none. */
function behindPrefix(prefix: string): string | undefined {
  const points = [...prefix].map((one) => one.codePointAt(0) as number);
  for (let last = points.pop(); last !== undefined; last = points.pop()) {
    if (last === 0x10_ff_ff) continue;
    // Skip the surrogates, which are not characters.
    const next = last === 0xd7_ff ? 0xe0_00 : last + 1;
    return String.fromCodePoint(...points, next);
  }
  return undefined;
}
