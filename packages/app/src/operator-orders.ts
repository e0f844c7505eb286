/** `orphans` and `teams`: orders to the running service of this home, and what they print. Each answers false if none is running. */
import type { Config } from "@cloche/base";
import { printable, printableJson } from "@cloche/protocol";
import { giveOrder } from "./control-socket.ts";
import type { OrderName, OrphanAnswer, TeamAnswer } from "./orders.ts";
import { printTable } from "./print-table.ts";

async function ordered<T>(
  { home }: Config,
  order: OrderName,
  fields?: Record<string, string>,
): Promise<T | undefined> {
  const answer = (await giveOrder(home, order, fields)) as T | undefined;
  if (answer === undefined) console.error(`no service is running with CLOCHE_HOME=${home}; start it first`);
  return answer;
}

export async function printOrphans(config: Config, json: boolean): Promise<boolean> {
  const answer = await ordered<{ orphans: OrphanAnswer[] }>(config, "orphans");
  if (answer === undefined) return false;
  const { orphans } = answer;
  if (json) console.log(printableJson(JSON.stringify(answer, null, 2)));
  else if (orphans.length === 0) console.error("the database knows every machine");
  else {
    printTable([
      ["ID", "NAME", "TEAM", "HOST", "PHASE", "RUNNING SINCE", "MEMORY", "DISK"],
      ...orphans.map((one) => [
        one.id,
        one.name,
        one.team_id,
        one.host_id,
        one.phase,
        one.running_since || "-",
        `${one.memory_mb} MiB`,
        `${one.disk_mb} MiB`,
      ]),
    ]);
    console.error(
      "the database does not know these machines, which are kept: cloche orphans adopt <id>, or cloche orphans delete <id>",
    );
  }
  return true;
}

/** `teamId` empty: the machine's own team. */
export async function adoptOrphan(
  config: Config,
  id: string,
  teamId: string,
  json: boolean,
): Promise<boolean> {
  const adopted = await ordered<OrphanAnswer>(config, "adopt-orphan", { id, team: teamId });
  if (adopted === undefined) return false;
  if (json) console.log(printableJson(JSON.stringify(adopted, null, 2)));
  else
    console.error(`${adopted.id} (${printable(adopted.name)}) is a sandbox of team ${adopted.team_id} again`);
  return true;
}

export async function deleteOrphan(config: Config, id: string, json: boolean): Promise<boolean> {
  const gone = await ordered<OrphanAnswer>(config, "delete-orphan", { id });
  if (gone === undefined) return false;
  if (json) console.log(printableJson(JSON.stringify(gone, null, 2)));
  else console.error(`the machine of ${gone.id} (${printable(gone.name)}) is deleted`);
  return true;
}

export async function printTeams(config: Config, json: boolean): Promise<boolean> {
  const answer = await ordered<{ teams: TeamAnswer[] }>(config, "teams");
  if (answer === undefined) return false;
  if (json) console.log(printableJson(JSON.stringify(answer, null, 2)));
  else
    printTable([
      ["ID", "NAME", "CREATED"],
      ...answer.teams.map(({ id, name, created_at }) => [id, name, created_at]),
    ]);
  return true;
}

/** Prints only the team's first API key to standard output. */
export async function createTeam(config: Config, name: string, json: boolean): Promise<boolean> {
  const team = await ordered<{ id: string; name: string; api_key: string }>(config, "create-team", { name });
  if (team === undefined) return false;
  if (json) console.log(printableJson(JSON.stringify(team, null, 2)));
  else {
    console.log(team.api_key);
    console.error(`the key of team ${team.name} (${team.id}); it is shown only now`);
  }
  return true;
}
