import pino from "pino";

/** Structured log lines. The first argument carries fields (request_id, sandbox_id, …), the second says what happened. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
  child(fields: object): Log;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";

/** JSON lines to a file (appended) or to stderr. `err` fields print with stack and cause. */
export function createLog(options: { level: LogLevel; file?: string }): Log {
  const destination = pino.destination({ dest: options.file ?? 2, sync: true, mkdir: true });
  return pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: pino.stdSerializers.errWithCause },
      redact: { paths: ["authorization", "headers.authorization", "token", "secret"], censor: "[redacted]" },
    },
    destination,
  );
}

export const silentLog: Log = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  child: () => silentLog,
};
