import { once } from "node:events";
import type { Readable, Writable } from "node:stream";
import { ClocheSdkError, ClocheApiError, type Cloche } from "@cloche/sdk";
import { coloured, colourOfState } from "./colours.ts";

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
  /** Called when a command needs the service. */
  connect(): Promise<Cloche & { close(): Promise<void> }>;
}

/** Writes, and waits for a slow reader. */
export async function write(stream: Writable, text: string | Uint8Array): Promise<void> {
  if (!stream.write(text)) await once(stream, "drain");
}

export const printJson = (terminal: Terminal, value: unknown): Promise<void> =>
  write(terminal.stdout, `${JSON.stringify(value, null, 2)}\n`);

const isState = /^(state|status|result)$/i;

/** Prints columns padded to their widest cell; prints nothing without rows. */
export async function printTable(terminal: Terminal, header: string[], rows: string[][]): Promise<void> {
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
export async function printFields(terminal: Terminal, fields: [string, string][]): Promise<void> {
  const shown = fields.filter(([, value]) => value !== "");
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
    terminal.stderr.write(`${JSON.stringify(body)}\n`);
  } else {
    const where = api?.requestId === undefined ? "" : ` (request ${api.requestId})`;
    terminal.stderr.write(
      `${coloured(terminal.env, terminal.stderr, "red", "cloche:")} ${message}${where}\n`,
    );
  }
}

/** All of standard input. */
export async function readAll(stream: Readable): Promise<Buffer<ArrayBuffer>> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(Buffer.from(chunk as Uint8Array));
  return Buffer.concat(chunks);
}
