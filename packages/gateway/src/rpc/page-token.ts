/** Opaque page tokens: where the last page ended, and a mark of the filters it was made with. */
import { createHash } from "node:crypto";
import { ClocheError } from "@cloche/protocol";

/** Filters that a token belongs to; a token of other filters is refused. */
export type PageFilters = { states: readonly string[]; metadata: Readonly<Record<string, string>> };

export function encodePageToken(lastOrdinal: number, filters: PageFilters): string {
  return Buffer.from(`${lastOrdinal}.${markOf(filters)}`).toString("base64url");
}

/** The ordinal that the next page begins below. Throws `invalid_argument` for what no answer gave out. */
export function decodePageToken(token: string, filters: PageFilters): number {
  const [, ordinal, mark] =
    /^(\d{1,16})\.([0-9a-f]{16})$/.exec(Buffer.from(token, "base64url").toString()) ?? [];
  if (ordinal === undefined) {
    throw new ClocheError(
      "invalid_argument",
      `page_token ${JSON.stringify(token.slice(0, 100))} is not one; pass next_page_token of the page before`,
    );
  }
  if (mark !== markOf(filters)) {
    throw new ClocheError(
      "invalid_argument",
      "page_token belongs to other filters; keep states and metadata as they were",
    );
  }
  return Number(ordinal);
}

function markOf(filters: PageFilters): string {
  const canonical = JSON.stringify([
    [...filters.states].toSorted(),
    Object.entries(filters.metadata).toSorted(([a], [b]) => (a < b ? -1 : 1)),
  ]);
  return createHash("sha256").update(canonical).digest("hex").slice(0, 16);
}
