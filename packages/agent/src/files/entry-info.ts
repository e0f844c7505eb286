import type { EntryInfo } from "@cloche/protocol";
import type { GuestEntry } from "../spawner/index.ts";

/** EntryInfo of service-interface.md. `path` is shown instead of the entry's own where the request named it. */
export function entryInfo(entry: GuestEntry, path: string = entry.path.toString("utf8")): EntryInfo {
  return {
    name: path === "/" ? "/" : path.slice(path.lastIndexOf("/") + 1),
    path,
    size: entry.sizeBytes,
    modified_at: new Date(entry.modifiedAtMs).toISOString(),
    is_dir: entry.kind === "directory",
    permissions: entry.mode.toString(8).padStart(4, "0"),
    owner: entry.owner,
    group: entry.group,
    symlink_target: entry.symlinkTarget.toString("utf8"),
  };
}
