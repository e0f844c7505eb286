/** JSON lines on stderr, read by the host. Bounded, because users can provoke log lines and must not fill the host's disk. */
export interface Log {
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

const linesPerSecond = 20;
const lineBurst = 200;

export function stderrLog(
  write: (line: string) => void = (line) => void process.stderr.write(line),
  now = Date.now,
): Log {
  let tokens = lineBurst;
  let filledAtMs = now();
  let dropped = 0;

  const emit = (level: string, message: string, fields: Record<string, unknown> = {}): void => {
    const nowMs = now();
    tokens = Math.min(lineBurst, tokens + (Math.max(0, nowMs - filledAtMs) * linesPerSecond) / 1000);
    filledAtMs = nowMs;
    if (tokens < 1) {
      dropped += 1;
      return;
    }
    tokens -= 1;
    const line: Record<string, unknown> = { time: new Date(nowMs).toISOString(), level, message };
    for (const [name, value] of Object.entries(fields)) line[name] = printable(value);
    if (dropped > 0) line["dropped_lines"] = dropped;
    dropped = 0;
    write(`${JSON.stringify(line)}\n`);
  };
  return {
    info: (message, fields) => emit("info", message, fields),
    warn: (message, fields) => emit("warn", message, fields),
    error: (message, fields) => emit("error", message, fields),
  };
}

/** Makes errors printable with stack and cause; JSON would print them as `{}`. */
function printable(value: unknown, depth = 0): unknown {
  if (!(value instanceof Error)) return value;
  const text = (value.stack ?? String(value)).slice(0, 4_096);
  return value.cause === undefined || depth > 3
    ? text
    : `${text}\ncaused by ${String(printable(value.cause, depth + 1))}`;
}
