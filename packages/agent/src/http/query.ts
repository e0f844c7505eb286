import { ClocheError } from "@cloche/protocol";

/**
 * The parameters of a query string: the first of each name, form-decoded on access. A value that is not UTF-8 is refused (400), except
 * for parameters that may be any bytes.
 */
export class Query {
  readonly #values = new Map<string, Buffer>();

  constructor(text: string) {
    for (const pair of text.split("&")) {
      if (pair === "") continue;
      const equals = pair.indexOf("=");
      const name = asText(
        decoded(equals < 0 ? pair : pair.slice(0, equals), "a name in the query"),
        "a name in the query",
      );
      if (!this.#values.has(name))
        this.#values.set(name, decoded(equals < 0 ? "" : pair.slice(equals + 1), name));
    }
  }

  get(name: string): string | undefined {
    const value = this.#values.get(name);
    return value === undefined ? undefined : asText(value, name);
  }

  *[Symbol.iterator](): Generator<[name: string, value: string]> {
    for (const [name, value] of this.#values) yield [name, asText(value, name)];
  }

  bytes(name: string): Buffer | undefined {
    return this.#values.get(name);
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function asText(bytes: Buffer, what: string): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new ClocheError("invalid_argument", `${what} is not percent-encoded UTF-8`);
  }
}

function decoded(text: string, what: string): Buffer {
  const spaced = text.replaceAll("+", " ");
  if (!spaced.includes("%")) return Buffer.from(spaced);
  return percentDecoded(spaced, what);
}

/** The bytes that a percent-encoded text stands for. Throws `invalid_argument` naming `what`. */
export function percentDecoded(text: string, what: string): Buffer {
  if (/%(?![0-9a-fA-F]{2})/.test(text))
    throw new ClocheError("invalid_argument", `${what} is not percent-encoded`);
  const parts = text.split(/((?:%[0-9a-fA-F]{2})+)/);
  return Buffer.concat(
    parts.map((part, index) =>
      index % 2 === 0 ? Buffer.from(part) : Buffer.from(part.replaceAll("%", ""), "hex"),
    ),
  );
}

export function queryBoolean(query: Query, name: string): boolean | undefined {
  const value = query.get(name);
  if (value === undefined) return undefined;
  if (value === "true") return true;
  if (value === "false") return false;
  throw new ClocheError("invalid_argument", `${name} must be true or false`);
}

export function queryInteger(query: Query, name: string, min: number, max: number): number | undefined {
  const value = query.get(name);
  if (value === undefined) return undefined;
  const number = /^[0-9]{1,16}$/.test(value) ? Number(value) : Number.NaN;
  if (!(number >= min && number <= max)) {
    throw new ClocheError("invalid_argument", `${name} must be an integer from ${min} to ${max}`);
  }
  return number;
}
