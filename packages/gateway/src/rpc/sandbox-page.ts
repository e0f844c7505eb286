/**
 * One page of a team's sandboxes. Metadata may be 300 KB for each, so a page also ends after so many bytes of it; and
 * records are read in parts, between which other teams are served.
 */
import { limits } from "@cloche/protocol";
import type { SandboxQuery } from "../database/sandbox-list.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";

const partMin = 25;
const partMax = 1_000;

export interface SandboxPage {
  sandboxes: SandboxRecord[];
  /** The last sandbox, if others follow. */
  next: SandboxRecord | undefined;
}

const lengthOf = ({ metadata }: SandboxRecord): number =>
  Object.entries(metadata).reduce((sum, [key, value]) => sum + key.length + value.length, 0);

export async function sandboxPage(
  list: (query: SandboxQuery) => Promise<SandboxRecord[]>,
  query: SandboxQuery,
  pageSize: number,
): Promise<SandboxPage> {
  const most = limits.listMetadataLength;
  const sandboxes: SandboxRecord[] = [];
  let length = 0;
  let part = partMin;
  for (;;) {
    const last = sandboxes.at(-1);
    const limit = Math.min(part, pageSize + 1 - sandboxes.length);
    const found = await list({ ...query, ...(last !== undefined && { after: last }), limit });
    for (const record of found) {
      if (sandboxes.length === pageSize || length > most) return { sandboxes, next: sandboxes.at(-1) };
      sandboxes.push(record);
      length += lengthOf(record);
    }
    if (found.length < limit) return { sandboxes, next: undefined };
    const fitting = Math.floor(((most - length) * sandboxes.length) / Math.max(1, length));
    part = Math.min(Math.max(fitting, partMin), partMax);
  }
}
