import type { Log } from "../log.ts";

export interface RecordedLine {
  level: "debug" | "info" | "warn" | "error";
  fields: object;
  message: string;
}

/** A log that keeps its lines. */
export function recordedLog(): { log: Log; lines: RecordedLine[] } {
  const lines: RecordedLine[] = [];
  const line = (level: RecordedLine["level"]) => (fields: object, message: string) =>
    void lines.push({ level, fields: { ...fields }, message });
  const log: Log = {
    debug: line("debug"),
    info: line("info"),
    warn: line("warn"),
    error: line("error"),
    child: () => log,
  };
  return { log, lines };
}
