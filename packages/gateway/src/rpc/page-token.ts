/** Opaque page tokens: where the last page ended, and a hash of the list's filters and order. */
import { createHash } from "node:crypto";
import { ClocheError } from "@cloche/protocol";
import type { SandboxPosition, SandboxQuery } from "../database/sandbox-list.ts";

/** The filters and order that a token belongs to; with others it is refused. */
export type PageFilters = Required<Pick<SandboxQuery, "states" | "metadata" | "order" | "namePrefix">>;

export function encodePageToken({ ordinal, name }: SandboxPosition, filters: PageFilters): string {
  const position = filters.order.by === "name" ? name : "";
  return Buffer.from(`${ordinal}.${markOf(filters)}.${position}`).toString("base64url");
}

/** The sandbox after which the next page begins. Throws `invalid_argument` for a token that no answer contained. */
export function decodePageToken(token: string, filters: PageFilters): SandboxPosition {
  const [, ordinal, mark, name] =
    /^(\d{1,16})\.([0-9a-f]{16})\.([^\0]*)$/su.exec(Buffer.from(token, "base64url").toString()) ?? [];
  if (ordinal === undefined || name === undefined) {
    throw new ClocheError(
      "invalid_argument",
      `page_token ${JSON.stringify(token.slice(0, 100))} is not one; pass next_page_token of the page before`,
    );
  }
  if (mark !== markOf(filters)) {
    throw new ClocheError(
      "invalid_argument",
      "page_token belongs to another list; keep states, metadata, name and order_by as they were",
    );
  }
  return { ordinal: Number(ordinal), name };
}

function markOf({ states, metadata, namePrefix, order }: PageFilters): string {
  const canonical = JSON.stringify([
    [...states].toSorted(),
    Object.entries(metadata).toSorted(([a], [b]) => (a < b ? -1 : 1)),
    namePrefix,
    [order.by, order.isDescending],
  ]);
  return createHash("sha256").update(canonical).digest("hex").slice(0, 16);
}
