import { ClocheError, limits } from "@cloche/protocol";

/**
 * Checks an absolute path of a request (400 naming the field) and drops what changes nothing: doubled slashes and `.`. Kept
 * are `..`, which only the sandbox itself can resolve past links, and a slash at the end, which demands a directory.
 */
export function absolutePath(value: string | undefined, field: string): string {
  if (value === undefined || value === "")
    throw new ClocheError(
      "invalid_argument",
      `${field} is required: an absolute path such as /root/file.txt`,
    );
  if (value.includes("\0"))
    throw new ClocheError("invalid_argument", `${field} must not contain NUL characters`);
  if (!value.startsWith("/"))
    throw new ClocheError(
      "invalid_argument",
      `${field} must be an absolute path, not ${JSON.stringify(clip(value))}`,
    );
  if (Buffer.byteLength(value) > limits.pathBytes)
    throw new ClocheError("invalid_argument", `${field} must not be longer than ${limits.pathBytes} bytes`);
  const parts = value.split("/").filter((part) => part !== "" && part !== ".");
  const directory = /\/\.?$/.test(value) && parts.length > 0;
  return `/${parts.join("/")}${directory ? "/" : ""}`;
}

/** A path as answers show it: without the slash at the end. */
export function shownPath(path: string): string {
  return path.length > 1 && path.endsWith("/") ? path.slice(0, -1) : path;
}

/** For messages: a path of 4,095 bytes says no more than its beginning. */
export function clip(path: string): string {
  return path.length > 200 ? `${path.slice(0, 200)}…` : path;
}
