/**
 * Checks the types of a JSON request. Protobuf's JSON accepts a string for a number and a number for an enum, and drops
 * an unknown name of an enum, which would widen a filter. By the contract, wrong types are refused (spec/contract.md,
 * Both surfaces).
 */
import { type DescEnum, type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { ClocheError, unknownField } from "@cloche/protocol";
import { refuse } from "../rpc/fields.ts";

/** Number types, with their names in protobuf's own refusals. */
const numbers = new Map([
  [ScalarType.UINT32, "uint32"],
  [ScalarType.DOUBLE, "float64"],
]);

/**
 * Throws `invalid_argument` naming the field. Does not check what protobuf itself refuses. Unknown fields are refused too, unless
 * `ignoresUnknown` (`known-fields.ts`).
 */
export function checkJsonTypes(message: DescMessage, body: object, ignoresUnknown: boolean, at = ""): void {
  const given = body as Readonly<Record<string, unknown>>;
  if (!ignoresUnknown) {
    const known = new Set(message.fields.flatMap(({ name, jsonName }) => [name, jsonName]));
    const unknown = Object.keys(given).find((name) => !known.has(name));
    if (unknown !== undefined)
      throw unknownField(
        at,
        unknown,
        message.fields.map(({ name }) => name),
      );
  }
  for (const field of message.fields) {
    for (const name of new Set([field.name, field.jsonName])) {
      const value = Object.hasOwn(given, name) ? (given[name] ?? undefined) : undefined;
      if (value === undefined) continue;
      if (field.fieldKind !== "list") checkValue(field, value, ignoresUnknown, at + name);
      else if (Array.isArray(value))
        for (const [index, item] of value.entries())
          checkValue(field, item, ignoresUnknown, `${at}${name}[${index}]`);
    }
  }
}

function checkValue(
  { scalar, enum: names, message }: DescField,
  value: unknown,
  ignoresUnknown: boolean,
  at: string,
): void {
  if (names !== undefined) checkName(names, value, at);
  else if (scalar !== undefined && typeof value === "string" && numbers.has(scalar))
    throw new ClocheError(
      "invalid_argument",
      `${at}: expected number (${numbers.get(scalar)}), got ${JSON.stringify(value.slice(0, 100))}`,
    );
  else if (message !== undefined && !message.typeName.startsWith("google.protobuf.") && isObject(value))
    checkJsonTypes(message, value, ignoresUnknown, `${at}.`);
}

function checkName({ name, values }: DescEnum, value: unknown, at: string): void {
  if (values.some((one) => one.name === value)) return;
  const words = name.replaceAll(/(?<=[a-z])[A-Z]/g, (letter) => ` ${letter}`).toLowerCase();
  throw refuse(at, value, `a ${words} such as ${values[2]?.name ?? values[0]?.name}`);
}

const isObject = (value: unknown): value is object =>
  typeof value === "object" && value !== null && !Array.isArray(value);
