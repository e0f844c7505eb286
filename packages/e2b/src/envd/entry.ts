import { posix } from "node:path";
import type { EntryInfo } from "@cloche/protocol";
import { ClocheApiError, type SandboxDataPlane } from "@cloche/sdk";
import type { Fields } from "../http.ts";
import { metadataIn } from "./metadata.ts";

const kinds = {
  file: "FILE_TYPE_FILE",
  directory: "FILE_TYPE_DIRECTORY",
  symlink: "FILE_TYPE_SYMLINK",
} as const;

/** An entry as envd tells it: a symlink has the type of what it leads to, and the absolute path of that. */
export async function entryOf(plane: SandboxDataPlane, info: EntryInfo, path = info.path): Promise<Fields> {
  const mode = Number.parseInt(info.permissions, 8);
  const isLink = info.symlink_target !== "";
  const target = isLink ? await targetOf(plane, info) : info;
  const metadata = metadataIn(info);
  return {
    name: posix.basename(path),
    type: target === undefined ? kinds.symlink : target.is_dir ? kinds.directory : kinds.file,
    path,
    size: String(info.size),
    mode: mode & 0o777,
    permissions: modeText(mode, isLink ? "L" : info.is_dir ? "d" : "-"),
    owner: info.owner,
    group: info.group,
    modifiedTime: info.modified_at,
    ...(metadata && { metadata }),
    ...(isLink && { symlinkTarget: posix.resolve(posix.dirname(info.path), info.symlink_target) }),
  };
}

/** What a link leads to. A list says it of all its links, so that they are not asked for one by one. */
const targetOf = async (
  plane: SandboxDataPlane,
  { path, target_type: type }: EntryInfo,
): Promise<Pick<EntryInfo, "is_dir"> | undefined> => {
  if (type === undefined) return followed(plane, path);
  return type === "" ? undefined : { is_dir: type === "directory" };
};

export const stat = (plane: SandboxDataPlane, path: string, follow = false): Promise<EntryInfo> =>
  plane.files.stat(path, { follow, attributes: true });

/** What a path leads to; undefined where that is nothing. */
export const followed = (plane: SandboxDataPlane, path: string): Promise<EntryInfo | undefined> =>
  statIfThere(plane, path, true);

/** As `stat`; undefined where nothing is. */
export async function statIfThere(
  plane: SandboxDataPlane,
  path: string,
  follow = false,
): Promise<EntryInfo | undefined> {
  try {
    return await stat(plane, path, follow);
  } catch (error) {
    // A loop of links, or a path through a file, is 400.
    if (error instanceof ClocheApiError && (error.status === 404 || error.status === 400)) return undefined;
    throw error;
  }
}

/** As Go prints a mode: `drwxr-xr-x`. */
function modeText(mode: number, kind: string): string {
  const letters = [...(mode & 0o777).toString(2).padStart(9, "0")];
  return kind + letters.map((bit, at) => (bit === "1" ? "rwx"[at % 3] : "-")).join("");
}
