import { isServiceName, limits } from "@cloche/protocol";

/** Longer than any path or name that an agent reports. */
const textLengthMax = 8_192;

/**
 * The fields of `zero`, with the agent's values where it answered them. Undefined: a value has another type than in `zero`, where a
 * list is one of strings. The guest is not trusted: further fields are dropped.
 */
export function fieldsOf<T extends object>(answer: Record<string, unknown>, zero: T): T | undefined {
  const known = Object.entries(zero).map(
    ([name, without]) => [name, answer[name] ?? without, without] as const,
  );
  if (!known.every(([name, value, without]) => isAlike(name, value, without))) return undefined;
  return Object.fromEntries(known) as T;
}

function isAlike(name: string, value: unknown, without: unknown): boolean {
  if (Array.isArray(without) && name.endsWith("Services")) return areServices(value);
  if (Array.isArray(without)) return Array.isArray(value) && value.every(isText);
  if (typeof without === "string") return isText(value);
  if (typeof without === "number") return typeof value === "number" && Number.isFinite(value) && value >= 0;
  return typeof value === typeof without;
}

/** Names of services go into records and checkpoints, which are kept: no more and no others than a sandbox can have. */
const areServices = (value: unknown): boolean =>
  Array.isArray(value) &&
  value.length <= limits.servicesPerSandbox &&
  value.every((name) => typeof name === "string" && isServiceName(name));

const isText = (value: unknown): boolean => typeof value === "string" && value.length <= textLengthMax;
