/** Checks of request fields. Each refusal names the field and its value, and says which values are allowed. */
import { toJson } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import {
  allPorts,
  ClocheError,
  defaults,
  type Egress,
  egressModes,
  isDisplayName,
  limits,
  type OnHostLoss,
  onHostLosses,
  type OnTimeout,
  onTimeouts,
  openEgress,
  parseAllowedCidr,
  parseAllowedDomain,
  type PublicPorts,
} from "@cloche/protocol";
import type { SandboxOrder } from "../database/sandbox-list.ts";

const shown = (value: unknown): string => {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
};

export function refuse(field: string, value: unknown, right: string): ClocheError {
  return new ClocheError("invalid_argument", `${field} is ${shown(value)}; it must be ${right}`);
}

export function displayName(field: string, value: string): string {
  if (isDisplayName(value, limits.sandboxNameLength)) return value;
  throw refuse(field, value, `1 to ${limits.sandboxNameLength} printable characters`);
}

export function numberWithin(field: string, value: number, min: number, max: number): number {
  if (Number.isFinite(value) && value >= min && value <= max) return value;
  // JSON has no NaN and Infinity.
  throw refuse(field, Number.isFinite(value) ? value : String(value), `a number from ${min} to ${max}`);
}

export function wholeWithin(field: string, value: number, min: number, max: number): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  throw refuse(field, value, `a whole number from ${min} to ${max}`);
}

export function oneOf(field: string, value: string, allowed: readonly string[]): string {
  if (allowed.includes(value)) return value;
  throw refuse(field, value, `one of ${allowed.join(", ")}`);
}

const lengthOf = (text: string): number => [...text].length;

export function metadata(field: string, value: Record<string, string>): Record<string, string> {
  const { metadataEntries, metadataKeyLength, metadataValueLength } = limits;
  const entries = Object.entries(value);
  if (entries.length > metadataEntries) {
    throw new ClocheError(
      "invalid_argument",
      `${field} has ${entries.length} entries; at most ${metadataEntries} are allowed`,
    );
  }
  for (const [key, text] of entries) {
    const length = lengthOf(key);
    if (length < 1 || length > metadataKeyLength || key.includes("\0")) {
      throw refuse(`a key of ${field}`, key, `1 to ${metadataKeyLength} characters without NUL`);
    }
    if (lengthOf(text) > metadataValueLength || text.includes("\0")) {
      throw refuse(`${field}[${shown(key)}]`, text, `at most ${metadataValueLength} characters without NUL`);
    }
  }
  return { ...value };
}

export function environment(field: string, value: Record<string, string>): Record<string, string> {
  const entries = Object.entries(value);
  if (entries.length > limits.envEntries) {
    throw new ClocheError(
      "invalid_argument",
      `${field} has ${entries.length} entries; at most ${limits.envEntries} are allowed`,
    );
  }
  let bytes = 0;
  for (const [name, text] of entries) {
    if (name === "" || /[=\0]/.test(name))
      throw refuse(`a name in ${field}`, name, "non-empty, without = and NUL");
    if (text.includes("\0")) throw refuse(`${field}[${shown(name)}]`, text, "without NUL");
    bytes += Buffer.byteLength(name) + Buffer.byteLength(text) + 2;
  }
  if (bytes > limits.envBytes) {
    throw new ClocheError(
      "invalid_argument",
      `${field} takes ${bytes} bytes; at most ${limits.envBytes} are allowed`,
    );
  }
  return { ...value };
}

/** A port that programs of the sandbox's owner may listen on. */
export function userPort(field: string, value: number): number {
  const port = wholeWithin(field, value, 1, 65_535);
  if (port !== defaults.agentPort) return port;
  throw refuse(field, port, "another port: this one is the sandbox's own agent's");
}

/** Port numbers, or only "*": every port. */
export function ports(field: string, value: readonly Value[]): PublicPorts {
  if (value.length === 1 && value[0]?.kind.case === "stringValue" && value[0].kind.value === allPorts)
    return [allPorts];
  if (value.length > limits.publicPorts) {
    throw new ClocheError(
      "invalid_argument",
      `${field} has ${value.length} ports; at most ${limits.publicPorts} are allowed`,
    );
  }
  const numbers = value.map((one) => {
    if (one.kind.case === "numberValue") return userPort(field, one.kind.value);
    throw refuse(field, toJson(ValueSchema, one), `port numbers, or ["${allPorts}"] for every port`);
  });
  return [...new Set(numbers)].toSorted((a, b) => a - b);
}

export function onTimeout(field: string, value: string): OnTimeout {
  const found = onTimeouts.find((one) => one === value);
  if (found !== undefined) return found;
  throw refuse(field, value, `one of ${onTimeouts.join(", ")}`);
}

export function onHostLoss(field: string, value: string): OnHostLoss {
  const found = onHostLosses.find((one) => one === value);
  if (found !== undefined) return found;
  throw refuse(field, value, `one of ${onHostLosses.join(", ")}`);
}

/** 0: never. */
export function checkpointEvery(field: string, value: number): number {
  const { checkpointEverySecondsMin: min, checkpointEverySecondsMax: max } = limits;
  if (value === 0 || (Number.isInteger(value) && value >= min && value <= max)) return value;
  throw refuse(field, value, `0 (never) or a whole number from ${min} to ${max}`);
}

/** The beginning of a name. */
export function namePrefix(field: string, value: string): string {
  return value === "" ? "" : displayName(field, value);
}

const sortFields = ["created_at", "name"] as const;

/** Empty: newest first. */
export function sandboxOrder(field: string, value: string): SandboxOrder {
  const isDescending = value === "" || value.startsWith("-");
  const name = value === "" ? "created_at" : value.replace(/^-/, "");
  const by = sortFields.find((one) => one === name);
  if (by !== undefined) return { by, isDescending };
  const right = sortFields.flatMap((one) => [one, `-${one}`]).join(", ");
  throw refuse(field, value, `one of ${right}`);
}

/** Undefined is open. */
export function egress(
  field: string,
  value: { mode: string; domains: readonly string[]; cidrs: readonly string[] } | undefined,
): Egress {
  if (value === undefined) return openEgress;
  const mode = egressModes.find((one) => one === value.mode);
  if (mode === undefined) throw refuse(`${field}.mode`, value.mode, `one of ${egressModes.join(", ")}`);
  const list = (
    name: string,
    texts: readonly string[],
    max: number,
    isOne: (text: string) => boolean,
    right: string,
  ) => {
    if (mode !== "allow" && texts.length > 0) {
      throw new ClocheError("invalid_argument", `${field}.${name} is only for mode allow, not ${mode}`);
    }
    if (texts.length > max) {
      throw new ClocheError(
        "invalid_argument",
        `${field}.${name} has ${texts.length} entries; at most ${max} are allowed`,
      );
    }
    const wrong = texts.findIndex((text) => !isOne(text));
    if (wrong >= 0) throw refuse(`${field}.${name}[${wrong}]`, texts[wrong], right);
    return [...new Set(texts)];
  };
  return {
    mode,
    domains: list(
      "domains",
      value.domains,
      limits.egressDomains,
      (text) => parseAllowedDomain(text) !== undefined,
      "a domain such as example.org, *.example.org, example.org:443 or example.org:8000-8100",
    ),
    cidrs: list(
      "cidrs",
      value.cidrs,
      limits.egressCidrs,
      (text) => parseAllowedCidr(text) !== undefined,
      "an IPv4 address or range such as 203.0.113.0/24, with ports as in 203.0.113.7:443",
    ),
  };
}

/** The page size of a list that returns all when no size is given: at most `unpagedList`, with a token for the rest. */
export const pageSizeOf = ({ pageSize }: { pageSize: number }): number =>
  pageSize === 0 ? limits.unpagedList : Math.min(pageSize, limits.pageSize);
