/** One setting of the service, and how its text is read: `parse` throws when the text is not as `expects` says. */
import { isIP } from "node:net";

export type Parse<T> = (text: string) => T;
export interface Setting<T> {
  env: string;
  /** Key in the config file. */
  key: string;
  default: T;
  parse: Parse<T>;
  expects: string;
}

export const integer =
  (min: number, max: number): Parse<number> =>
  (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < min || value > max) throw new Error("out of range");
    return value;
  };
export const zeroOr =
  (parse: Parse<number>): Parse<number> =>
  (text) =>
    text === "0" ? 0 : parse(text);
export const oneOf =
  <T extends string>(...values: readonly T[]): Parse<T> =>
  (text) => {
    if (!(values as readonly string[]).includes(text)) throw new Error("not one of them");
    return text as T;
  };
export const matching =
  (pattern: RegExp): Parse<string> =>
  (text) => {
    if (!pattern.test(text)) throw new Error("does not match");
    return text;
  };
export const onOrOff: Parse<boolean> = (text) =>
  ["1", "true"].includes(oneOf("1", "true", "0", "false")(text));
export const anyText: Parse<string> = (text) => text;
export const port = integer(1, 65_535);
export const portText = "a TCP port from 1 to 65535";

export const ipAddresses: Parse<string[]> = (text) => {
  const addresses = text.split(",").map((one) => one.trim());
  if (addresses.some((one) => isIP(one) === 0)) throw new Error("no address");
  return addresses;
};

const isDnsName = /^(?=.{1,200}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;
/** Names as in a Host header: an IPv6 address gets brackets. */
export const hostNames: Parse<string[]> = (text) => {
  const names = text.split(",").map((one) => one.trim());
  if (names.some((one) => isIP(one) === 0 && !isDnsName.test(one))) throw new Error("no name");
  return names.map((one) => (isIP(one) === 6 ? `[${one}]` : one));
};

export const limitText = "a whole number from 0 (no limit) to 1000000";

export const absolutePath = matching(/^\/[^\0]*$/);
export const optionalPath = matching(/^(\/[^\0]*)?$/);
export const dnsName = matching(isDnsName);

export function setting<T>(
  env: string,
  key: string,
  fallback: T,
  parse: Parse<T>,
  expects: string,
): Setting<T> {
  return { env, key, default: fallback, parse, expects };
}
