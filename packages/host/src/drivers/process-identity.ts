/** Identifies a process by pid and start time, because a pid alone is reused. */
import { readFileSync } from "node:fs";

export interface ProcessIdentity {
  pid: number;
  /** Clock ticks after boot; from /proc/<pid>/stat. */
  startTime: string;
}

/** Undefined when there is no such process, or only a zombie of it. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  let stat: string;
  try {
    // Synchronous: the kernel answers from memory, faster than a hand-over to another thread.
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  // The command in parentheses may itself hold spaces and parentheses.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const state = fields[0];
  const startTime = fields[19];
  if (state === "Z" || state === "X" || startTime === undefined) return undefined;
  return { pid, startTime };
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  return (await identify(identity.pid))?.startTime === identity.startTime;
}
