import type { EntryInfo } from "@cloche/protocol";
import type { GuestEntry, GuestPath } from "../spawner/index.ts";
import { encodedPath, pathText } from "./path.ts";

/** The earliest time that a timestamp in an answer can have; file systems in memory accept earlier ones. */
const earliestMs = Date.parse("0001-01-01T00:00:00Z");
const latestMs = Date.parse("9999-12-31T23:59:59.999Z");

export const timeOf = (ms: number): Date => new Date(Math.min(Math.max(ms, earliestMs), latestMs));

/**
 * EntryInfo of spec/contract.md. `path` is the path from the request, if it differs from the entry's own. Names that are not UTF-8 are
 * also given percent-encoded. `withAttributes`: the request asks for them.
 */
export function entryInfo(
  entry: GuestEntry,
  path: GuestPath = entry.path,
  withAttributes = false,
): EntryInfo {
  const text = pathText(path);
  const encoded = encodedPath(path);
  const target = encodedPath(entry.symlinkTarget);
  const modifiedAt = timeOf(entry.modifiedAtMs).toISOString();
  return {
    name: text === "/" ? "/" : text.slice(text.lastIndexOf("/") + 1),
    path: text,
    ...(encoded !== undefined && { path_encoded: encoded }),
    size: entry.sizeBytes,
    modified_at: modifiedAt,
    mtime: modifiedAt,
    is_dir: entry.kind === "directory",
    permissions: entry.mode.toString(8).padStart(4, "0"),
    owner: entry.owner,
    user: entry.owner,
    group: entry.group,
    symlink_target: entry.symlinkTarget.toString("utf8"),
    ...(target !== undefined && { symlink_target_encoded: target }),
    ...(withAttributes && { attributes: attributesText(entry) }),
  };
}

const attributesText = ({ attributes }: GuestEntry): Record<string, string> =>
  Object.fromEntries(attributes.map(({ name, value }) => [name, value.toString("base64")]));
