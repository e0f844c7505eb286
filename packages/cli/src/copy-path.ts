import { UsageError } from "./exit-codes.ts";

/** An operand of cp: `<sandbox>:<absolute path>`, a local path, or `-` for standard input and output. */
export type CopyPath = { sandbox: string; path: string } | { sandbox: undefined; path: string };

/** A colon before the first slash makes it remote, as in scp; `./a:b` is local. */
export function parseCopyPath(text: string): CopyPath {
  const colon = text.indexOf(":");
  const slash = text.indexOf("/");
  if (colon < 1 || (slash !== -1 && slash < colon)) return { sandbox: undefined, path: text };
  const path = text.slice(colon + 1);
  if (!path.startsWith("/")) {
    throw new UsageError(
      `${text}: the path in a sandbox must be absolute, as in ${text.slice(0, colon)}:/root/${path}`,
    );
  }
  return { sandbox: text.slice(0, colon), path };
}

/** Last part of a path, as a copy into a directory is named. */
export const baseName = (path: string): string => /([^/]+)\/*$/.exec(path)?.[1] ?? "";

export const joinRemote = (directory: string, name: string): string =>
  `${directory.replace(/\/+$/, "")}/${name}`;
