import { allPorts, type PublicPorts } from "@cloche/sdk";
import { InvalidArgumentError, type Command } from "commander";
import { UsageError } from "./exit-codes.ts";

/** Parsers of option values for commander; their messages say what would be right. */
export function wholeNumber(text: string): number {
  if (!/^\d{1,15}$/.test(text)) throw new InvalidArgumentError("it must be a whole number");
  return Number(text);
}

export function positiveNumber(text: string): number {
  const value = Number(text);
  if (!(value > 0) || !Number.isFinite(value)) throw new InvalidArgumentError("it must be a positive number");
  return value;
}

export function portNumber(text: string): number {
  const port = wholeNumber(text);
  if (port < 1 || port > 65_535) throw new InvalidArgumentError("a port is 1 to 65535");
  return port;
}

/** `30`, `30s`, `5m`, `2h`, `7d` in seconds. */
export function seconds(text: string): number {
  const match = /^(\d{1,12})([smhd]?)$/.exec(text);
  if (match === null) throw new InvalidArgumentError("it must be a time like 90, 90s, 5m, 2h or 7d");
  return (
    Number(match[1]) * { "": 1, s: 1, m: 60, h: 3_600, d: 86_400 }[match[2] as "" | "s" | "m" | "h" | "d"]
  );
}

/** Repeatable options. */
export const collect = (text: string, before: string[] = []): string[] => [...before, text];
/** `*`: every port. */
export const collectPorts = (text: string, before: PublicPorts = []): PublicPorts => [
  ...before,
  text === allPorts ? text : portNumber(text),
];

/** Repeatable `KEY=VALUE`. */
export function collectPairs(text: string, before: Record<string, string> = {}): Record<string, string> {
  const equals = text.indexOf("=");
  if (equals < 1) throw new InvalidArgumentError("it must be KEY=VALUE");
  return { ...before, [text.slice(0, equals)]: text.slice(equals + 1) };
}

/** The fields without undefined ones, as requests of the SDK need them. */
export function present<Fields extends object>(
  fields: Fields,
): { [Name in keyof Fields]: Exclude<Fields[Name], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}

/** Throws a UsageError with `example` if there is no command line after `--`. */
export function requireCommand(args: readonly string[], example: string): string[] {
  if (args.length === 0) throw new UsageError(`a command is missing; for example: ${example}`);
  return [...args];
}

/**
 * Ends option parsing after `operands` operands, so that `exec box ls -l` needs no `--`: all further words belong to the command. Takes the
 * words after the subcommand; answers them with a `--` inserted if there was none.
 */
export function separateCommand(args: readonly string[], command: Command, operands: number): string[] {
  const takesValue = new Set(
    command.options.filter((option) => option.required).flatMap(({ short, long }) => [short, long]),
  );
  let seen = 0;
  for (let index = 0; index < args.length; index += 1) {
    const arg = args[index] as string;
    if (arg === "--") break;
    if (takesValue.has(arg)) index += 1;
    else if (!arg.startsWith("-") || arg === "-") {
      if (seen === operands) return [...args.slice(0, index), "--", ...args.slice(index)];
      seen += 1;
    }
  }
  return [...args];
}
