/** Orders that an operator gives a running program over its control socket, and their answers. */
import { rfc3339 } from "@cloche/base";
import type { Gateway, Orphan } from "@cloche/gateway";
import { ClocheError } from "@cloche/protocol";
import type { Rotated } from "./key-rotation.ts";

export type OrderName =
  | "rotate-signing-key"
  | "prune-cache"
  | "orphans"
  | "adopt-orphan"
  | "delete-orphan"
  | "teams"
  | "create-team";

/** Takes the fields of the order; the answer is JSON. */
export type Order = (fields: URLSearchParams) => Promise<object>;

/** An order that the program does not take is absent. */
export type Orders = Partial<Record<OrderName, Order>>;

export interface OrphanAnswer {
  id: string;
  host_id: string;
  team_id: string;
  name: string;
  phase: string;
  runtime: string;
  cpus: number;
  memory_mb: number;
  disk_mb: number;
  /** Empty: unknown. */
  running_since: string;
}

export interface TeamAnswer {
  id: string;
  name: string;
  created_at: string;
}

/** Orders to a program that has a gateway. */
export function gatewayOrders(gateway: Gateway, rotate: () => Promise<Rotated>): Orders {
  return {
    async "rotate-signing-key"() {
      const { kid, retiring } = await rotate();
      return { kid, retiring: retiring.map((one) => ({ kid: one.kid, removed_at: rfc3339(one.atMs) })) };
    },
    orphans: async () => ({ orphans: (await gateway.orphans.list()).map(orphanAnswer) }),
    "adopt-orphan": async (fields) =>
      orphanAnswer(await gateway.orphans.adopt(fields.get("id") ?? "", fields.get("team") ?? "")),
    "delete-orphan": async (fields) => orphanAnswer(await gateway.orphans.remove(fields.get("id") ?? "")),
    async teams() {
      const teams = await gateway.teams();
      const answers: TeamAnswer[] = teams.map(({ id, name, createdAtMs }) => ({
        id,
        name,
        created_at: rfc3339(createdAtMs),
      }));
      return { teams: answers };
    },
    async "create-team"(fields) {
      const name = fields.get("name") ?? "";
      if (!/^[\p{L}\p{N}][\p{L}\p{N} ._-]{0,63}$/u.test(name))
        throw new ClocheError(
          "invalid_argument",
          `${JSON.stringify(name)} is no team name: 1 to 64 letters, digits, spaces, dots, hyphens or underscores, the first a letter or digit`,
        );
      if ((await gateway.teams()).some((team) => team.name === name))
        throw new ClocheError(
          "already_exists",
          `there is a team ${JSON.stringify(name)} already; cloche teams lists them`,
        );
      const team = await gateway.addTeam(name);
      const { secret } = await gateway.createApiKey(team.id, "first key");
      return { id: team.id, name, api_key: secret };
    },
  };
}

const orphanAnswer = (orphan: Orphan): OrphanAnswer => ({
  id: orphan.id,
  host_id: orphan.hostId,
  team_id: orphan.teamId,
  name: orphan.name,
  phase: orphan.phase,
  runtime: orphan.runtime,
  cpus: orphan.cpus,
  memory_mb: orphan.memoryMb,
  disk_mb: orphan.diskMb,
  running_since: orphan.runningSinceMs === 0 ? "" : rfc3339(orphan.runningSinceMs),
});
