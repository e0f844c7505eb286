/**
 * Lines that anybody can cause without a credential, or a program in a sandbox: short, and bounded in rate. Each kind of line (its message)
 * has a bucket of its own, so that a flood of one hides no other. What is left out is counted, and said in a line of its own.
 */
import type { Log } from "./log.ts";
import { RateLimit } from "./rate-limit.ts";

export interface LineBounds {
  /** Lines of one kind a second, for long. */
  linesPerSecond: number;
  burstSeconds: number;
  /** A longer text in a field is cut. */
  fieldCharacters: number;
  /** How long after the first line that was left out their count is written. */
  countedMs: number;
}
export const strangersLines: LineBounds = {
  linesPerSecond: 10,
  burstSeconds: 10,
  fieldCharacters: 300,
  countedMs: 10_000,
};

type Level = "debug" | "info" | "warn" | "error";

/** A log for such lines, which writes to `log`. */
export function boundedLog(log: Log, bounds: LineBounds = strangersLines): Log {
  const { linesPerSecond, burstSeconds, fieldCharacters, countedMs } = bounds;
  const rate = new RateLimit({
    perSecond: linesPerSecond,
    burstSeconds,
    monotonicMs: () => performance.now(),
  });
  const leftOut = new Map<string, number>();

  const leaveOut = (to: Log, level: Level, message: string): void => {
    const count = leftOut.get(message);
    leftOut.set(message, (count ?? 0) + 1);
    if (count !== undefined) return;
    const report = (): void => {
      to[level]({ left_out: leftOut.get(message) }, `${message}: more lines like this were left out`);
      leftOut.delete(message);
    };
    setTimeout(report, countedMs).unref();
  };
  const over = (to: Log): Log => {
    const line = (level: Level) => (fields: object, message: string) => {
      if (rate.take(message) === 0) to[level](shortened(fields, fieldCharacters, level), message);
      else leaveOut(to, level, message);
    };
    return {
      debug: line("debug"),
      info: line("info"),
      warn: line("warn"),
      error: line("error"),
      child: (fields) => over(to.child(fields)),
    };
  };
  return over(log);
}

/** Texts cut, and of errors the message alone, unless the line is an error of ours: a stranger's mistake has no stack worth reading. */
function shortened(fields: object, most: number, level: Level): object {
  const short = Object.entries(fields).map(([name, value]: [string, unknown]) => {
    if (value instanceof Error && level !== "error")
      return [name, { type: value.name, message: cut(value.message, most) }] as const;
    return [name, typeof value === "string" ? cut(value, most) : value] as const;
  });
  return Object.fromEntries(short);
}

const cut = (text: string, most: number): string => (text.length <= most ? text : `${text.slice(0, most)}…`);
