import { ClocheError, limits } from "@cloche/protocol";

/**
 * Reads fields of a JSON body. Each function throws `invalid_argument` (400) with the field and what would be right. An optional field
 * that is `null` counts as absent.
 */
export type JsonObject = Record<string, unknown>;

const wrong = (name: string, expected: string): ClocheError =>
  new ClocheError("invalid_argument", `${name} must be ${expected}`);

export function requiredString(body: JsonObject, name: string): string {
  const value = optionalString(body, name);
  if (value === undefined) throw new ClocheError("invalid_argument", `${name} is required (a string)`);
  return value;
}

/** Strings with a NUL are refused: paths, arguments and names cannot contain one. */
export function optionalString(body: JsonObject, name: string): string | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "string") throw wrong(name, "a string");
  if (value.includes("\0")) throw wrong(name, "a string without NUL characters");
  return value;
}

export function optionalBoolean(body: JsonObject, name: string): boolean | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "boolean") throw wrong(name, "true or false");
  return value;
}

export function optionalInteger(
  body: JsonObject,
  name: string,
  min: number,
  max: number,
): number | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number" || !Number.isInteger(value) || value < min || value > max) {
    throw wrong(name, `an integer from ${min} to ${max}`);
  }
  return value;
}

export function optionalStrings(body: JsonObject, name: string): string[] | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (!Array.isArray(value)) throw wrong(name, "an array of strings");
  return value.map((item: unknown, index) => {
    if (typeof item !== "string") throw wrong(`${name}[${index}]`, "a string");
    if (item.includes("\0")) throw wrong(`${name}[${index}]`, "a string without NUL characters");
    return item;
  });
}

/** `cmd` of the exec routes: an array of strings with at least the program. */
export function requiredCommand(body: JsonObject, name: string): string[] {
  // A text has no words without a shell, whose rules nobody named.
  if (typeof body[name] === "string")
    throw wrong(name, 'an array of strings; for a shell line use ["sh", "-c", line]');
  const command = optionalStrings(body, name);
  if (command === undefined) {
    throw new ClocheError("invalid_argument", `${name} is required (an array of strings)`);
  }
  if (command.length === 0 || command[0] === "") {
    throw wrong(name, "an array whose first string names the program");
  }
  return command;
}

/** Environment: names are not empty and hold no `=`. */
export function optionalEnvironment(body: JsonObject, name: string): Record<string, string> | undefined {
  const value = body[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "object" || Array.isArray(value)) throw wrong(name, "an object of strings");
  for (const [variable, text] of Object.entries(value)) {
    if (typeof text !== "string") throw wrong(`${name}.${variable}`, "a string");
    if (text.includes("\0")) throw wrong(`${name}.${variable}`, "a string without NUL characters");
    if (Buffer.byteLength(variable) + Buffer.byteLength(text) + 1 >= limits.execArgumentBytes) {
      throw new ClocheError(
        "invalid_argument",
        `${name}.${variable.slice(0, 100)} must be shorter than ${limits.execArgumentBytes} bytes with its name; pass long text in a file`,
      );
    }
    if (variable === "" || variable.includes("=") || variable.includes("\0")) {
      throw new ClocheError(
        "invalid_argument",
        `${name}: ${JSON.stringify(variable)} is no variable name; it must not be empty or hold "=" or NUL`,
      );
    }
  }
  return { ...value } as Record<string, string>;
}
