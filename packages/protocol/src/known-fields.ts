/**
 * Unknown fields of a request: refused, because a misspelt policy must not leave a door open. A client that is newer than the server
 * sends the header `x-cloche-unknown-fields: ignore`, and they are ignored.
 */
import { ClocheError } from "./errors.ts";
import { dataPlaneFields, type KnownFields } from "./data-plane-fields.ts";
import { nearestName } from "./nearest-name.ts";
import { dataPlaneRouteName } from "./routes.ts";

export type { KnownFields } from "./data-plane-fields.ts";

export const unknownFieldsHeader = "x-cloche-unknown-fields";

/** Whether the request's header says that unknown fields are ignored. */
export const ignoresUnknownFields = (headers: Record<string, string | string[] | undefined>): boolean =>
  headers[unknownFieldsHeader] === "ignore";

const nameShownMax = 100;

/** `name` is written as the caller wrote it, after `at` (`tty.`). */
export function unknownField(at: string, name: string, known: Iterable<string>): ClocheError {
  const nearest = nearestName(name, known);
  const shown = JSON.stringify(at + name.slice(0, nameShownMax));
  const meant = nearest === undefined ? "" : `; did you mean ${JSON.stringify(at + nearest)}?`;
  return new ClocheError(
    "invalid_argument",
    `there is no field ${shown}${meant} (the header ${unknownFieldsHeader}: ignore has unknown fields ignored)`,
  );
}

/** Throws `invalid_argument` for the first field of `body` that is not known. */
export function checkFields(known: KnownFields, body: object, at = ""): void {
  for (const [name, value] of Object.entries(body)) {
    const fields = Object.hasOwn(known, name) ? known[name] : undefined;
    if (fields === undefined) throw unknownField(at, name, Object.keys(known));
    if (fields !== true && typeof value === "object" && value !== null && !Array.isArray(value))
      checkFields(fields, value, `${at}${name}.`);
  }
}

/** The same for the JSON body of a request of the data plane. A path of no route has no known fields, and is not checked. */
export function checkDataPlaneFields(
  request: {
    method?: string | undefined;
    url?: string | undefined;
    headers: Record<string, string | string[] | undefined>;
  },
  body: object,
): void {
  if (ignoresUnknownFields(request.headers)) return;
  const known = dataPlaneFields[dataPlaneRouteName(request.method ?? "", pathOf(request.url ?? "")) ?? ""];
  if (known !== undefined) checkFields(known, body);
}

const pathOf = (url: string): string => url.split("?", 1)[0] ?? "";
