import { once } from "node:events";
import type { Readable, Writable } from "node:stream";
import { printable, printableJson, printableLines } from "@cloche/protocol";
import { ClocheSdkError, ClocheApiError, type Cloche } from "@cloche/sdk";
import type { Connection } from "@cloche/sdk/node";
import { withShortStates } from "./sandbox-format.ts";
import { type Colour, coloured, colourOfState, hasColours } from "./colours.ts";

/** The streams and the service of one run of the CLI; tests pass fakes. */
export interface Terminal {
  /** If it is a terminal, `setRawMode(true)` delivers keys as they are typed. */
  stdin: Readable & { isTTY?: boolean; setRawMode?(raw: boolean): unknown };
  stdout: Writable & { isTTY?: boolean; columns?: number; rows?: number };
  /** If it is a terminal, progress is shown there. */
  stderr: Writable & { isTTY?: boolean; columns?: number };
  env: NodeJS.ProcessEnv;
  /** Aborts on Ctrl-C. */
  signal: AbortSignal;
  /** Called when a command needs the service. `named`: another one than the environment and the current context name. */
  connect(named?: Partial<Connection>): Promise<Cloche & { close(): Promise<void> }>;
}

/** Writes, and waits for a slow reader. */
export async function write(stream: Writable, text: string | Uint8Array): Promise<void> {
  if (!stream.write(text)) await once(stream, "drain");
}

export const printJson = (terminal: Terminal, value: unknown): Promise<void> =>
  write(terminal.stdout, `${printableJson(JSON.stringify(value, null, 2))}\n`);

/** One JSON value on one line. */
export const printJsonLine = (terminal: Terminal, value: unknown): Promise<void> =>
  write(terminal.stdout, `${printableJson(JSON.stringify(value))}\n`);

/** Prints each text on a line of its own, safe for a terminal. */
export const printLines = (terminal: Terminal, ...lines: string[]): Promise<void> =>
  write(terminal.stdout, lines.map((line) => `${printable(line)}\n`).join(""));

/** Prints a message of the command on standard error. Further lines of it are indented, so that they cannot pass for messages. */
export function printNotice({ env, stderr }: Terminal, message: string, colour?: Colour): void {
  const text = message.trimEnd().split("\n").map(printable).join("\n  ");
  stderr.write(`${coloured(env, stderr, colour, "cloche:")} ${text}\n`);
}

/** A sequence that sets colours and nothing else. */
const colourSequence = /(\x1b\[[\d;:]{0,32}m)/;

/** Prints what a sandbox wrote: as it is for a program; for a terminal without all that it would obey, except colours. */
export function printText({ env, stdout }: Terminal, text: string): Promise<void> {
  if (stdout.isTTY !== true) return write(stdout, text);
  if (!hasColours(env, stdout)) return write(stdout, printableLines(text));
  const parts = text.split(colourSequence);
  const shown = parts.map((part, at) => (at % 2 === 1 ? part : printableLines(part))).join("");
  return write(stdout, parts.length === 1 ? shown : `${shown}\x1b[0m`);
}

/** Undefined: an older service does not say it. */
type Cell = string | undefined;

const isState = /^(state|status|result)$/i;

/** Prints columns padded to their widest cell. Cells are made safe for a terminal. */
export async function printTable(terminal: Terminal, header: string[], cells: Cell[][]): Promise<void> {
  const rows = cells.map((row) => row.map((cell) => printable(cell ?? "")));
  const widths = header.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const lines = [header, ...rows].map((row, at) => {
    const last = row.findLastIndex((cell) => cell !== "");
    const shown = row.slice(0, last + 1).map((cell, column) => {
      const padding = " ".repeat(column === last ? 0 : (widths[column] ?? 0) - cell.length);
      const colour = at === 0 ? "bold" : isState.test(header[column] ?? "") ? colourOfState(cell) : undefined;
      return `${coloured(terminal.env, terminal.stdout, colour, cell)}${padding}`;
    });
    return shown.join("  ");
  });
  await write(terminal.stdout, `${lines.join("\n")}\n`);
}

/** Prints `name  value` lines; empty values are left out. */
export async function printFields(terminal: Terminal, fields: [string, Cell][]): Promise<void> {
  const shown = fields
    .map(([name, value]): [string, string] => [name, printable(value ?? "")])
    .filter(([, value]) => value !== "");
  const width = Math.max(...shown.map(([name]) => name.length));
  const line = (name: string, value: string): string => {
    const colour = isState.test(name) ? colourOfState(value) : name === "error" ? "red" : undefined;
    return `${name.padEnd(width)}  ${coloured(terminal.env, terminal.stdout, colour, value)}\n`;
  };
  await write(terminal.stdout, shown.map(([name, value]) => line(name, value)).join(""));
}

/** Prints an error to stderr, as text or with `--json` as JSON. */
export function printError(terminal: Terminal, error: unknown, json: boolean): void {
  const message = error instanceof Error ? error.message : String(error);
  const api = error instanceof ClocheApiError ? error : undefined;
  if (json) {
    const body = {
      code: error instanceof ClocheSdkError ? error.code : "failed",
      message,
      reason: api?.reason,
      status: api?.status,
      request_id: api?.requestId,
      details: api?.details,
    };
    terminal.stderr.write(`${printableJson(JSON.stringify(body))}\n`);
  } else {
    const where = api?.requestId === undefined ? "" : ` (request ${api.requestId})`;
    printNotice(terminal, `${withShortStates(message)}${where}`, "red");
  }
}

/** All of standard input. */
export async function readAll(stream: Readable): Promise<Buffer<ArrayBuffer>> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(Buffer.from(chunk as Uint8Array));
  return Buffer.concat(chunks);
}
