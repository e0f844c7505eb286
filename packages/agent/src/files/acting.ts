/** The Unix user whose rights a file request has: root, or the user named by `x-file-user` or `as_user`. */
import { ClocheError, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import type { Guest, GuestFiles, GuestPath } from "../spawner/index.ts";
import { type FailureSubjects, fileFailure } from "./failures.ts";
import { pathText } from "./path.ts";

const header = "x-file-user";
const parameter = "as_user";

/** The user's name or number, and the field that named it; undefined: root. */
export function actingUser(exchange: Exchange): readonly [field: string, user: string] | undefined {
  const sent = exchange.request.headers[header];
  const asked = exchange.query.get(parameter);
  if (sent !== undefined && asked !== undefined && sent !== asked)
    throw new ClocheError("invalid_argument", `${header} and ${parameter} must not name different users`);
  const [field, user] = sent === undefined ? [parameter, asked] : [header, sent];
  if (user === undefined) return undefined;
  return [field, accountName(user, field)];
}

/** Checks a field that has a user or a group, by name or number. */
export function accountName(value: unknown, field: string, mayHaveGroup = true): string {
  const text = typeof value === "number" ? String(value) : value;
  const form = mayHaveGroup ? /^[^\0:]+(?::[^\0:]+)?$/ : /^[^\0:]+$/;
  if (typeof text === "string" && form.test(text) && Buffer.byteLength(text) <= limits.accountNameBytes)
    return text;
  throw new ClocheError(
    "invalid_argument",
    `${field} must be a name or a number, such as www-data or 1000, of at most ${limits.accountNameBytes} bytes`,
  );
}

export function filesOf(guest: Guest, exchange: Exchange): GuestFiles {
  const user = actingUser(exchange);
  return user === undefined ? guest.files : guest.files.as(user[1]);
}

/** Runs an operation; its errors name the field of the request that they concern. */
export async function about<T>(
  exchange: Exchange,
  path: GuestPath,
  operation: Promise<T>,
  more: Partial<FailureSubjects> = {},
): Promise<T> {
  try {
    return await operation;
  } catch (error) {
    throw fileFailure(error, { path: ["path", pathText(path)], user: actingUser(exchange), ...more });
  }
}
