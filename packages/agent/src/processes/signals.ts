import { constants } from "node:os";
import { ClocheError } from "@cloche/protocol";

const highest = 64;
const firstRealTime = 34;
const byName = new Map<string, number>(Object.entries(constants.signals));
// A number with two names gets the first, which is the usual one: SIGABRT, not SIGIOT.
const byNumber = new Map([...byName].reverse().map(([name, number]) => [number, name]));

/** A signal in a request's `field`: a name, with or without SIG, or a number. Throws `invalid_argument`. */
export function readSignal(value: unknown, field = "signal"): number {
  const number = typeof value === "string" ? signalOf(value) : value;
  if (typeof number === "number" && Number.isInteger(number) && number >= 1 && number <= highest)
    return number;
  throw new ClocheError(
    "invalid_argument",
    `${field} must be the name of a signal, such as "SIGINT", or its number from 1 to ${highest}`,
  );
}

/** The number of a signal given as text: INT, SIGINT, SIGRTMIN+3, SIGRTMAX-1 or 2. Undefined: there is no such signal. */
export function signalOf(text: string): number | undefined {
  if (/^[0-9]{1,2}$/.test(text)) {
    const number = Number(text);
    return number >= 1 && number <= highest ? number : undefined;
  }
  const name = text.toUpperCase().replace(/^SIG/, "");
  const [, end, step = ""] = /^(RTMIN|RTMAX)([+-][0-9]{1,2})?$/.exec(name) ?? [];
  if (end !== undefined) {
    const number = (end === "RTMIN" ? firstRealTime : highest) + Number(step);
    return number >= firstRealTime && number <= highest ? number : undefined;
  }
  return byName.get(`SIG${name}`);
}

/** The number of a name from `signalName`; null for null. */
export function signalNumber(name: string | null): number | null {
  return name === null ? null : (signalOf(name) ?? Number(name.slice(3)));
}

/** The name of a signal, such as SIGKILL. */
export function signalName(number: number): string {
  const name = byNumber.get(number);
  if (name !== undefined) return name;
  return number >= firstRealTime ? `SIGRTMIN+${number - firstRealTime}` : `SIG${number}`;
}
