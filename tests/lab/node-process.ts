// A program on a node of a lab: it outlives whoever started it, and writes to a log of its own. Known by pid and start time, so
// that another process's pid is never taken for it.
import { spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export interface NodeProcess {
  readonly pid: number;
  /** Of /proc/<pid>/stat: ticks after the machine's start. */
  readonly startedAt: string;
}

export interface ProgramOptions {
  readonly env: NodeJS.ProcessEnv;
  readonly logFile: string;
  readonly cwd: string;
}

const STOP_DEADLINE_MS = 60_000;

export function startProgram(
  argv: readonly string[],
  { env, logFile, cwd }: ProgramOptions,
): Promise<NodeProcess> {
  const log = openSync(logFile, "a");
  const [program = "", ...words] = argv;
  const child = spawn(program, words, { cwd, env, detached: true, stdio: ["ignore", log, log] });
  closeSync(log);
  child.unref();
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("spawn", () => {
      const { pid = 0 } = child;
      resolve({ pid, startedAt: startOf(pid) ?? "" });
    });
  });
}

export const isAlive = ({ pid, startedAt }: NodeProcess): boolean => startOf(pid) === startedAt;

/** Waits until it has ended, at most a minute. */
export async function endProgram(process: NodeProcess, signal: NodeJS.Signals): Promise<void> {
  if (!isAlive(process)) return;
  globalThis.process.kill(process.pid, signal);
  for (const until = Date.now() + STOP_DEADLINE_MS; isAlive(process); await sleep(20))
    if (Date.now() > until) throw new Error(`pid ${process.pid} lives on after ${signal}`);
}

/** Undefined: no such process, or a zombie. */
function startOf(pid: number): string | undefined {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8")
      .replace(/^.*\) /, "")
      .split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
  } catch {
    return undefined;
  }
}
