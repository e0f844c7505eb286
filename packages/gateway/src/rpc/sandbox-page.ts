/**
 * One page of a team's sandboxes. Metadata may be 300 KB for each, so a page also ends by its bytes; and records are
 * read in parts, between which other teams are served.
 */
import type { SandboxQuery } from "../database/sandbox-list.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { wireBytes } from "./page-bytes.ts";

const partMin = 25;
const partMax = 1_000;

export interface SandboxPage<Message> {
  sandboxes: Message[];
  /** The last sandbox, if others follow. */
  next: SandboxRecord | undefined;
}

export interface PageBounds {
  pageSize: number;
  /** As `wireBytes` counts; a page has at least one sandbox. */
  pageBytes: number;
}

export async function sandboxPage<Message>(
  list: (query: SandboxQuery) => Promise<SandboxRecord[]>,
  query: SandboxQuery,
  { pageSize, pageBytes: most }: PageBounds,
  messageOf: (record: SandboxRecord) => Message,
): Promise<SandboxPage<Message>> {
  const sandboxes: Message[] = [];
  let last: SandboxRecord | undefined;
  let bytes = 0;
  let part = partMin;
  for (;;) {
    const limit = Math.min(part, pageSize + 1 - sandboxes.length);
    const found = await list({ ...query, ...(last !== undefined && { after: last }), limit });
    for (const record of found) {
      const message = messageOf(record);
      bytes += wireBytes(message);
      if (sandboxes.length === pageSize || (last !== undefined && bytes > most))
        return { sandboxes, next: last };
      sandboxes.push(message);
      last = record;
    }
    if (found.length < limit) return { sandboxes, next: undefined };
    const fitting = Math.floor(((most - bytes) * sandboxes.length) / Math.max(1, bytes));
    part = Math.min(Math.max(fitting, partMin), partMax);
  }
}
