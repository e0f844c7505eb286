/** The rows of a cluster that has been running: so many hosts, and sandboxes that run on them, all of one team. */
import { randomBytes } from "node:crypto";
import { type Database, openPostgres } from "@cloche/gateway";
import { systemClock } from "@cloche/base";
import { newTeamId } from "@cloche/protocol";
import pg from "pg";

export interface Scale {
  hosts: number;
  records: number;
}

/** Which of the simulated hosts a call is for. */
export const hostHeader = "x-scale-host";
export const hostIdOf = (index: number): string => `h-${String(index).padStart(4, "0")}`;
export const sandboxIdOf = (index: number): string => `sbx-${String(index).padStart(20, "0")}`;
/** Of each sandbox. */
export const shape = { cpus: 1, memoryMb: 512, diskMb: 1_024 } as const;
const dayMs = 24 * 3_600_000;

export const openShared = (url: string): Promise<Database> =>
  openPostgres(url, systemClock, undefined, { isShared: true });

export async function fill(url: string, { hosts, records }: Scale): Promise<void> {
  const database = await openShared(url);
  const teamId = newTeamId(randomBytes);
  await database.teams.insert({ id: teamId, name: "scale", createdAtMs: Date.now() });
  for (let index = 0; index < hosts; index += 1)
    await database.hosts.register(
      {
        id: hostIdOf(index),
        address: `${hostIdOf(index)}.example:7090`,
        cpuClass: "",
        capacityMemoryMb: 256 * 1_024,
        version: "0.1.0",
        runtimes: ["gvisor"],
      },
      dayMs,
    );
  await database.close();
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const nowMs = Date.now();
  await client.query(
    `insert into sandboxes (id, team_id, ordinal, name, state, generation, host_id, runtime, template, cpus, memory_mb,
       disk_mb, env, metadata, public_ports, egress, source_sandbox_id, source_checkpoint_id, error_message, first_ran_at,
       timeout_seconds, expires_at, on_timeout, idle_suspend_seconds, auto_resume, created_at, updated_at)
     select 'sbx-' || lpad(i::text, 20, '0'), $1, i, 'box-' || i, 'SANDBOX_STATE_RUNNING', 2,
       'h-' || lpad((i % $2)::text, 4, '0'), 'gvisor', 'base', ${shape.cpus}, ${shape.memoryMb}, ${shape.diskMb},
       '{"A":"1"}', '{"of":"scale"}', '[]', '{"mode":"open","domains":[],"cidrs":[]}', '', '', '', $3::bigint, 0, null,
       'delete', 0, 0, $3::bigint, $3::bigint
     from generate_series(0, $4::int - 1) i`,
    [teamId, hosts, nowMs, records],
  );
  await client.query(
    `insert into usage_intervals (id, sandbox_id, team_id, cpus, memory_mb, started_at, seen_at)
     select id || ':2', id, team_id, cpus, memory_mb, $1::bigint, $1::bigint from sandboxes`,
    [nowMs],
  );
  await client.query(`update teams set sandboxes = $1`, [records]);
  await client.query(
    `update hosts set reserved_memory_mb = (select count(*) * ${shape.memoryMb} from sandboxes where host_id = hosts.id)`,
  );
  await client.query("analyze");
  await client.end();
}
