/**
 * The checkpoints of a team. A single host knows its own checkpoints; in a cluster they are named in the database,
 * which answers without a host. A team never finds checkpoints of another team.
 */
import { create } from "@bufbuild/protobuf";
import {
  ClocheError,
  limits,
  type ListPosition,
  listPositionText,
  parseListPosition,
} from "@cloche/protocol";
import { type HostCheckpoint, HostCheckpointSchema } from "@cloche/protocol/host";
import type { NamedCheckpoint, StoredNames } from "../database/stored-names.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { HostCalls } from "../hosts/host-calls.ts";

/** The calls about checkpoints, as of HostCalls. */
export type TeamCheckpoints = Pick<HostCalls, "checkpoints" | "checkpoint" | "deleteCheckpoint">;

export function teamCheckpoints(fleet: Fleet, names: StoredNames): TeamCheckpoints {
  if (fleet.isCluster) return namedCheckpoints(names);
  return {
    checkpoints: (query, context) => fleet.any().checkpoints(query, context),
    checkpoint: (teamId, id, context) => fleet.any().checkpoint(teamId, id, context),
    deleteCheckpoint: (teamId, id, context) => fleet.any().deleteCheckpoint(teamId, id, context),
  };
}

export const namedCheckpoints = (names: StoredNames): TeamCheckpoints => ({
  async checkpoints({ teamId, sandboxId, limit, pageToken }) {
    const page = await pageOf(names, { teamId, sandboxId, limit, pageToken });
    return { checkpoints: page.checkpoints.map(messageOf), nextPageToken: page.nextPageToken };
  },
  async checkpoint(teamId, id) {
    const known = await names.checkpoint(teamId, id);
    return known && messageOf(known);
  },
  async deleteCheckpoint(teamId, id) {
    const freed = await names.dropCheckpoint(teamId, id);
    if (freed !== undefined) return freed;
    throw new ClocheError("not_found", `checkpoint_id ${JSON.stringify(id)} does not exist`);
  },
});

/** One page, newest first. `limit` 0: the size of a list without pages (limits.unpagedList). */
export async function pageOf(
  names: StoredNames,
  query: { teamId: string; sandboxId: string; limit: number; pageToken: string },
): Promise<{ checkpoints: NamedCheckpoint[]; nextPageToken: string }> {
  const { teamId, sandboxId, pageToken } = query;
  const limit = Math.min(query.limit || limits.unpagedList, limits.unpagedList);
  const after = pageToken === "" ? undefined : parseListPosition("page_token", pageToken);
  const found = await names.checkpoints({ teamId, sandboxId, limit: limit + 1, after });
  const checkpoints = found.slice(0, limit);
  const last = checkpoints.at(-1);
  const hasMore = last !== undefined && found.length > limit;
  return { checkpoints, nextPageToken: hasMore ? listPositionText(positionOf(last)) : "" };
}

const positionOf = ({ createdAt, id }: NamedCheckpoint): ListPosition => ({ created_at: createdAt, id });

/** Every named checkpoint is visible. */
function messageOf({ header, ...known }: NamedCheckpoint): HostCheckpoint {
  const parsed = JSON.parse(header) as {
    name?: string;
    runtime?: string;
    disk_mb?: number;
    automatic?: boolean;
  };
  return create(HostCheckpointSchema, {
    ...known,
    name: parsed.name ?? "",
    runtime: parsed.runtime ?? "",
    diskMb: parsed.disk_mb ?? 0,
    automatic: parsed.automatic === true,
    visible: true,
  });
}
