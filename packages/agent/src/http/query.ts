import { ClocheError } from "@cloche/protocol";

/** The parameters of a query string: the first of each name, form-decoded; what is no UTF-8 is refused (400) rather than mangled. */
export type Query = ReadonlyMap<string, string>;

export function parseQuery(text: string): Query {
  const query = new Map<string, string>();
  if (text === "") return query;
  for (const pair of text.split("&")) {
    if (pair === "") continue;
    const equals = pair.indexOf("=");
    const name = decode(equals < 0 ? pair : pair.slice(0, equals), "a name in the query");
    if (!query.has(name)) query.set(name, decode(equals < 0 ? "" : pair.slice(equals + 1), name));
  }
  return query;
}

function decode(text: string, what: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw new ClocheError("invalid_argument", `${what} is not percent-encoded UTF-8`);
  }
}

export function queryBoolean(query: Query, name: string): boolean | undefined {
  const value = query.get(name);
  if (value === undefined || value === "") return undefined;
  if (value === "true" || value === "1") return true;
  if (value === "false" || value === "0") return false;
  throw new ClocheError("invalid_argument", `${name} must be true or false`);
}

export function queryInteger(query: Query, name: string, min: number, max: number): number | undefined {
  const value = query.get(name);
  if (value === undefined || value === "") return undefined;
  const number = /^[0-9]{1,15}$/.test(value) ? Number(value) : Number.NaN;
  if (!(number >= min && number <= max)) {
    throw new ClocheError("invalid_argument", `${name} must be an integer from ${min} to ${max}`);
  }
  return number;
}
