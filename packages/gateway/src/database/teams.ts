import type { Kysely } from "kysely";
import type { Schema, TeamRow } from "./schema.ts";

export interface Team {
  id: string;
  name: string;
  createdAtMs: number;
}

export class Teams {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  async insert(team: Team): Promise<void> {
    await this.#db
      .insertInto("teams")
      .values({ id: team.id, name: team.name, created_at: team.createdAtMs, sandboxes: 0 })
      .execute();
  }

  async get(id: string): Promise<Team | undefined> {
    const row = await this.#db.selectFrom("teams").selectAll().where("id", "=", id).executeTakeFirst();
    return row && teamFromRow(row);
  }

  /** Oldest first. */
  async all(): Promise<Team[]> {
    const rows = await this.#db.selectFrom("teams").selectAll().orderBy("created_at").orderBy("id").execute();
    return rows.map(teamFromRow);
  }
}

const teamFromRow = (row: TeamRow): Team => ({ id: row.id, name: row.name, createdAtMs: row.created_at });
