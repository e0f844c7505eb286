import { constants } from "node:os";
import { ClocheError } from "@cloche/protocol";

const highest = 64;
const firstRealTime = 34;
const byName = new Map<string, number>(Object.entries(constants.signals));
// A number with two names gets the first, which is the usual one: SIGABRT, not SIGIOT.
const byNumber = new Map([...byName].reverse().map(([name, number]) => [number, name]));

/** `signal` of a request: a name, with or without SIG, or a number. Throws `invalid_argument`. */
export function readSignal(value: unknown): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= highest) return value;
  if (typeof value === "string") {
    if (/^[0-9]{1,2}$/.test(value)) return readSignal(Number(value));
    const name = value.toUpperCase();
    const number = byName.get(name.startsWith("SIG") ? name : `SIG${name}`);
    if (number !== undefined) return number;
  }
  throw new ClocheError(
    "invalid_argument",
    `signal must be the name of a signal, such as "SIGINT", or its number from 1 to ${highest}`,
  );
}

/** The number of a name from `signalName`; null for null. */
export function signalNumber(name: string | null): number | null {
  if (name === null) return null;
  const realTime = /^SIGRTMIN\+([0-9]+)$/.exec(name)?.[1];
  return realTime === undefined
    ? (byName.get(name) ?? Number(name.slice(3)))
    : firstRealTime + Number(realTime);
}

/** The name of a signal, such as SIGKILL. */
export function signalName(number: number): string {
  const name = byNumber.get(number);
  if (name !== undefined) return name;
  return number >= firstRealTime ? `SIGRTMIN+${number - firstRealTime}` : `SIG${number}`;
}
