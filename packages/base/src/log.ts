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

const gatheredBytes = 4_096;
const gatheredMs = 100;
const warnLevel = pino.levels.values["warn"] as number;

/**
 * JSON lines to a file (appended) or to stderr. `err` fields print with stack and cause. Lines to a file are gathered for a tenth of a second
 * (a system call for each request would cost as much as the request); warnings and errors are written at once, and so is what is left at exit.
 */
export function createLog(options: { level: LogLevel; file?: string }): Log {
  const toFile = options.file !== undefined;
  const minLength = toFile ? gatheredBytes : 0;
  const destination = pino.destination({ dest: options.file ?? 2, sync: true, mkdir: true, minLength });
  // A log that cannot be written (a full disk) must not end the service.
  destination.on("error", () => undefined);
  const flush = (): void => {
    try {
      destination.flushSync();
    } catch {
      // Tried again with the next lines.
    }
  };
  if (toFile) {
    setInterval(flush, gatheredMs).unref();
    process.on("exit", flush);
  }
  return pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      hooks: {
        logMethod(words, method, level) {
          method.apply(this, words);
          if (toFile && level >= warnLevel) flush();
        },
      },
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
