/** Longer than any path or name that an agent reports. */
const TEXT_LENGTH_MAX = 8_192;

/**
 * The fields of `zero`, with the agent's values where it answered them. Undefined: a value has another type than in `zero`, where a
 * list is one of strings. The guest is not trusted: further fields are dropped.
 */
export function fieldsOf<T extends object>(answer: Record<string, unknown>, zero: T): T | undefined {
  const known = Object.entries(zero).map(
    ([name, without]) => [name, answer[name] ?? without, without] as const,
  );
  if (!known.every(([, value, without]) => isAlike(value, without))) return undefined;
  return Object.fromEntries(known) as T;
}

function isAlike(value: unknown, without: unknown): boolean {
  if (Array.isArray(without)) return Array.isArray(value) && value.every(isText);
  if (typeof without === "string") return isText(value);
  if (typeof without === "number") return typeof value === "number" && Number.isFinite(value) && value >= 0;
  return typeof value === typeof without;
}

const isText = (value: unknown): boolean => typeof value === "string" && value.length <= TEXT_LENGTH_MAX;
