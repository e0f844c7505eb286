import { printableJson } from "@cloche/protocol";
import pino from "pino";
import { LogFile } from "./log-file.ts";

/**
 * Structured log lines. The first argument carries fields (request_id, sandbox_id, …), the second says what happened.
 */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
  child(fields: object): Log;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";

const warnLevel = pino.levels.values["warn"] as number;

/**
 * JSON lines, appended to a file or written to stderr. `err` fields print with stack and cause. Lines to a file are
 * gathered for a tenth of a second (log-file.ts); warnings and errors are written at once, and the rest at exit.
 */
export function createLog(options: { level: LogLevel; file?: string }): Log {
  const file = options.file === undefined ? undefined : new LogFile(options.file);
  const destination = file ?? standardError();
  return pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      hooks: {
        logMethod(args, method, level) {
          method.apply(this, args);
          if (level >= warnLevel) file?.flush();
        },
        // Names and messages of sandboxes are in it, and operators read it on terminals.
        streamWrite: printableJson,
      },
      serializers: { err: pino.stdSerializers.errWithCause },
      redact: { paths: ["authorization", "headers.authorization", "token", "secret"], censor: "[redacted]" },
    },
    destination,
  );
}

function standardError(): pino.DestinationStream {
  const stream = pino.destination({ dest: 2, sync: true });
  // The reader of stderr may be gone.
  stream.on("error", () => undefined);
  return stream;
}

export const silentLog: Log = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  child: () => silentLog,
};
