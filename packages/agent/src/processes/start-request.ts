import { ClocheError, limits } from "@cloche/protocol";
import { readProgram } from "../commands/read-program.ts";
import type { Command } from "../commands/run-command.ts";
import { type JsonObject, optionalBoolean, optionalInteger, optionalString } from "../http/fields.ts";
import type { TerminalSize } from "../spawner/index.ts";
import type { ProcessSpec } from "./process.ts";

export interface StartRequest {
  spec: Omit<ProcessSpec, "stdout" | "stderr"> & { outputLimitBytes: number };
  command: Command;
}

const defaultSize: TerminalSize = { cols: 80, rows: 24 };

/** Checks the body of `POST /v1/processes`. Throws `invalid_argument` naming the field. */
export function readStartRequest(
  body: JsonObject,
  sandboxEnv: Readonly<Record<string, string>>,
): StartRequest {
  const program = readProgram(body, sandboxEnv);
  const tty = readTerminal(body["tty"]);
  const stdin = readStdin(body, tty !== undefined);
  const tag = optionalString(body, "tag") ?? "";
  if (Buffer.byteLength(tag) > limits.processTagBytes) {
    throw new ClocheError("invalid_argument", `tag must not be longer than ${limits.processTagBytes} bytes`);
  }
  const mergeOutput = (optionalBoolean(body, "merge_output") ?? false) || tty !== undefined;
  const outputLimitBytes =
    optionalInteger(body, "output_limit_bytes", 1, limits.processOutputBytesMax) ??
    limits.processOutputBytesDefault;
  const keepSeconds =
    optionalInteger(body, "keep_seconds", 0, limits.processKeepSecondsMax) ??
    limits.processKeepSecondsDefault;
  const { cmd, dir, user } = program;
  return {
    spec: { kind: "process", cmd, dir, user, tag, tty, stdin, mergeOutput, keepSeconds, outputLimitBytes },
    command: {
      ...program,
      tty,
      mergeOutput,
      holdTree: true,
      onStdin: stdin === "open" && tty === undefined ? leftOpen : undefined,
    },
  };
}

/** Size of a terminal: `cols` and `rows`; `fallback` has the defaults. */
export function readSize(body: JsonObject, prefix: string, fallback?: TerminalSize): TerminalSize {
  const read = (name: "cols" | "rows"): number => {
    const value = optionalInteger(
      { [`${prefix}${name}`]: body[name] },
      `${prefix}${name}`,
      1,
      limits.terminalCells,
    );
    const size = value ?? fallback?.[name];
    if (size === undefined)
      throw new ClocheError("invalid_argument", `${prefix}${name} is required (an integer)`);
    return size;
  };
  return { cols: read("cols"), rows: read("rows") };
}

function readTerminal(value: unknown): TerminalSize | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "object" || Array.isArray(value)) {
    throw new ClocheError("invalid_argument", "tty must be an object with cols and rows");
  }
  return readSize(value as JsonObject, "tty.", defaultSize);
}

function readStdin(body: JsonObject, hasTerminal: boolean): "none" | "open" {
  const stdin = optionalString(body, "stdin") ?? (hasTerminal ? "open" : "none");
  if (stdin === "none" || stdin === "open") return stdin;
  throw new ClocheError(
    "invalid_argument",
    'stdin must be "none" or "open"; send bytes to the process\'s stdin',
  );
}

/** Keeps standard input open; later input is written by `Process.write`. */
const leftOpen = (): void => undefined;
