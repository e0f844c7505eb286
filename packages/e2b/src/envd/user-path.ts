import { posix } from "node:path";
import type { Account } from "./accounts.ts";
import { badField } from "../e2b-error.ts";

/** A path in envd's form: absolute, below `~`, or relative to the user's home; empty is the home. */
export function userPath(field: string, path: unknown, { home }: Account): string {
  if (path === undefined || path === null || path === "") return home;
  if (typeof path !== "string" || path.includes("\0")) throw badField(field, path, "a path without NUL");
  if (path === "~" || path.startsWith("~/")) return posix.resolve(home, `.${path.slice(1)}`);
  return posix.resolve(home, path);
}
