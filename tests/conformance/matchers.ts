// What a case expects of an answer, compared with what came (spec/cases/README.md, What is expected). Pure.

/** Reads the clock in Unix milliseconds; passed in so that `$seconds_from_now` can be tested. */
export type Now = () => number;

type Json = Record<string, unknown>;

const timestampPattern = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/;

/** Where `actual` differs from `expected`, one line each; empty when it matches. `at` names the place. */
export function mismatches(expected: unknown, actual: unknown, at = "json", now: Now = Date.now): string[] {
  if (isMatcher(expected)) {
    return Object.entries(expected).flatMap(([name, argument]) =>
      applyMatcher(name, argument, actual, at, now),
    );
  }
  if (Array.isArray(expected)) return arrayMismatches(expected, actual, at, now);
  if (typeof expected === "object" && expected !== null) {
    if (!isObject(actual)) return [`${at}: expected an object, got ${show(actual)}`];
    return Object.entries(expected).flatMap(([key, value]) =>
      mismatches(value, actual[key], `${at}.${key}`, now),
    );
  }
  return Object.is(expected, actual) ? [] : [`${at}: expected ${show(expected)}, got ${show(actual)}`];
}

function isMatcher(value: unknown): value is Json {
  if (!isObject(value)) return false;
  const keys = Object.keys(value);
  return keys.length > 0 && keys.every((key) => key.startsWith("$"));
}

const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function arrayMismatches(expected: readonly unknown[], actual: unknown, at: string, now: Now): string[] {
  if (!Array.isArray(actual)) return [`${at}: expected an array, got ${show(actual)}`];
  if (actual.length !== expected.length)
    return [`${at}: expected ${expected.length} elements, got ${actual.length}: ${show(actual)}`];
  return expected.flatMap((one, index) => mismatches(one, actual[index], `${at}[${index}]`, now));
}

function applyMatcher(name: string, argument: unknown, actual: unknown, at: string, now: Now): string[] {
  const matches = (expected: unknown, value: unknown): boolean =>
    mismatches(expected, value, at, now).length === 0;
  const unless = (fine: boolean, wanted: string): string[] =>
    fine ? [] : [`${at}: expected ${wanted}, got ${show(actual)}`];
  const elements = Array.isArray(actual) ? (actual as unknown[]) : undefined;
  switch (name) {
    case "$type":
      return unless(typeOf(actual, argument), `a value of type ${show(argument)}`);
    case "$match":
      return unless(
        typeof actual === "string" && new RegExp(String(argument), "u").test(actual),
        `text that matches ${String(argument)}`,
      );
    case "$includes":
      return unless(
        typeof actual === "string" && actual.includes(String(argument)),
        `text with ${show(argument)} in it`,
      );
    case "$timestamp":
      return unless(
        typeof actual === "string" && timestampPattern.test(actual) && !Number.isNaN(Date.parse(actual)),
        "a RFC 3339 timestamp in UTC with milliseconds",
      );
    case "$min":
      return unless(typeof actual === "number" && actual >= Number(argument), `at least ${String(argument)}`);
    case "$max":
      return unless(typeof actual === "number" && actual <= Number(argument), `at most ${String(argument)}`);
    case "$any_of":
      return unless(
        list(argument).some((one) => matches(one, actual)),
        `one of ${show(argument)}`,
      );
    case "$not":
      return unless(!matches(argument, actual), `not ${show(argument)}`);
    case "$absent":
      return unless(actual === undefined, "no such field");
    case "$some":
      return list(Array.isArray(argument) ? argument : [argument]).flatMap((wanted) =>
        unless(elements?.some((one) => matches(wanted, one)) ?? false, `an array with ${show(wanted)} in it`),
      );
    case "$every":
      return elements
        ? elements.flatMap((one, index) => mismatches(argument, one, `${at}[${index}]`, now))
        : unless(false, "an array");
    case "$length":
      return typeof actual === "string" || elements
        ? mismatches(
            argument,
            typeof actual === "string" ? actual.length : elements?.length,
            `${at}.length`,
            now,
          )
        : unless(false, "an array or a string");
    case "$exactly":
      return unless(
        isObject(actual) &&
          isObject(argument) &&
          Object.keys(actual).sort().join() === Object.keys(argument).sort().join(),
        `exactly the fields ${Object.keys(argument as Json).join(", ")}`,
      ).concat(mismatches(argument, actual, at, now));
    case "$all":
      return list(argument).flatMap((one) => mismatches(one, actual, at, now));
    case "$seconds_from_now":
      return unless(
        typeof actual === "number" && Math.abs(actual - (now() / 1000 + Number(argument))) <= 30,
        `Unix seconds about ${String(argument)} s from now`,
      );
    default:
      throw new Error(`${at}: ${name} is no matcher; spec/cases/README.md lists them`);
  }
}

function typeOf(value: unknown, type: unknown): boolean {
  switch (type) {
    case "integer":
      return Number.isInteger(value);
    case "null":
      return value === null;
    case "array":
      return Array.isArray(value);
    case "object":
      return isObject(value);
    case "string":
    case "number":
    case "boolean":
      return typeof value === type;
    default:
      throw new Error(`$type: ${show(type)} is no type`);
  }
}

const list = (value: unknown): unknown[] => {
  if (!Array.isArray(value)) throw new Error(`expected a list of alternatives, got ${show(value)}`);
  return value;
};

function show(value: unknown): string {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
