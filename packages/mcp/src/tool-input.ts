/**
 * The input of a tool as models and their clients need it.
 *
 * - Null means not given, at every depth: clients made from schemas send it for optional arguments.
 * - An unknown argument is refused by its name, with the nearest known one: a misspelt one would be lost otherwise.
 * - The schema is of the smallest dialect, Gemini's for function declarations: types, enums, bounds and `required`; no unions, references,
 *   constants, maps or further keywords, any of which makes Gemini refuse all tools. What is valid may be more than what is listed.
 */
import type { StandardSchemaWithJSON } from "@modelcontextprotocol/server";
import { z } from "zod";
import { nearestArgument } from "./nearest-argument.ts";

type Json = Record<string, unknown>;

/** Faults of one input that the answer names. */
const issuesReported = 8;

export function toolInput<Input extends z.ZodObject>(
  schema: Input,
): StandardSchemaWithJSON<z.input<Input>, z.output<Input>> {
  const jsonSchema = (): Json => listed(z.toJSONSchema(schema, { io: "input" }));
  return {
    "~standard": {
      version: 1,
      vendor: "cloche",
      jsonSchema: { input: jsonSchema, output: jsonSchema },
      validate(value) {
        const unknown: string[] = [];
        const parsed = schema.safeParse(given(schema, value ?? {}, unknown));
        if (unknown.length > 0) return { issues: unknown.map((message) => ({ message })) };
        return parsed.success
          ? { value: parsed.data }
          : { issues: parsed.error.issues.slice(0, issuesReported) };
      },
    },
  };
}

/** The value without nulls, where its schema takes none. Adds to `unknown` what is wrong with the names of arguments. */
function given(schema: z.core.$ZodType, value: unknown, unknown: string[]): unknown {
  const inner = unwrapped(schema);
  if (Array.isArray(value))
    return inner instanceof z.ZodArray ? value.map((one) => given(inner.element, one, unknown)) : value;
  if (value === null || typeof value !== "object" || inner instanceof z.ZodUnknown) return value;
  const shape: Record<string, z.core.$ZodType> = inner instanceof z.ZodObject ? inner.shape : {};
  const names = Object.keys(shape);
  const fields = Object.entries(value).flatMap(([name, field]): [string, unknown][] => {
    const known = Object.hasOwn(shape, name) ? shape[name] : undefined;
    if (names.length > 0 && known === undefined) {
      // A null stands for nothing: no client meant it. Of 50,000 names the nearest took seconds of all callers' time.
      if (field !== null && unknown.length < issuesReported) unknown.push(unknownArgument(name, names));
      return [];
    }
    if (field === null && !(known !== undefined && unwrapped(known) instanceof z.ZodUnknown)) return [];
    return [[name, known === undefined ? field : given(known, field, unknown)]];
  });
  return Object.fromEntries(fields);
}

function unknownArgument(name: string, known: readonly string[]): string {
  const near = nearestArgument(name, known);
  const remedy = near === undefined ? `it takes ${known.join(", ")}` : `did you mean ${near}?`;
  return `unknown argument ${JSON.stringify(name.slice(0, 64))}; ${remedy}`;
}

function unwrapped(schema: z.core.$ZodType): z.core.$ZodType {
  if (schema instanceof z.ZodOptional || schema instanceof z.ZodDefault) return unwrapped(schema.unwrap());
  return schema instanceof z.ZodPipe ? unwrapped(schema.in) : schema;
}

const kept =
  "type description enum required minimum maximum minLength maxLength minItems maxItems pattern".split(" ");

/** Of a union the first form; the description says what else is taken. */
function listed(schema: Json): Json {
  const { anyOf, ...rest } = schema as Json & { anyOf?: Json[] };
  const all = { ...anyOf?.[0], ...rest };
  const result: Json = Object.fromEntries(
    kept
      .filter((name) => name in all && !isSafeIntegerBound(name, all[name]))
      .map((name) => [name, all[name]]),
  );
  if (all.items !== undefined) result.items = listed(all.items as Json);
  if (all.properties !== undefined)
    result.properties = Object.fromEntries(
      Object.entries(all.properties as Json).map(([name, one]) => [name, listed(one as Json)]),
    );
  return result;
}

const isSafeIntegerBound = (name: string, value: unknown): boolean =>
  name.endsWith("imum") && Math.abs(value as number) === Number.MAX_SAFE_INTEGER;
