import { readdirSync, readFileSync } from "node:fs";

/** Activity of users, for the host's idle detection (guest.proto, GetActivity): requests, output, traffic. */
export class Activity {
  readonly #now: () => number;
  #lastMs: number;
  #openRequests = 0;

  constructor(now: () => number) {
    this.#now = now;
    this.#lastMs = now();
  }

  /** Notes activity of a user: output of a process, traffic of a port. */
  touch(): void {
    this.#lastMs = this.#now();
  }

  /** Notes the beginning of a user's request; call the answer when the request has ended. */
  begin(): () => void {
    this.touch();
    this.#openRequests += 1;
    let open = true;
    return () => {
      if (!open) return;
      open = false;
      this.#openRequests -= 1;
      this.touch();
    };
  }

  get lastActivityMs(): number {
    return this.#lastMs;
  }

  get openRequests(): number {
    return this.#openRequests;
  }
}

interface ProcessTimes {
  name: string;
  parent: number;
  ownMs: number;
  reapedMs: number;
}

/** Reads the needed fields of /proc/<pid>/stat; the program's name may contain spaces and parentheses. */
export function parseStat(stat: string, clockTicksPerSecond = 100): ProcessTimes {
  const nameEnd = stat.lastIndexOf(")");
  const fields = stat.slice(nameEnd + 2).split(" ");
  const ticks = (index: number): number => Number(fields[index] ?? 0);
  const msPerTick = 1000 / clockTicksPerSecond;
  return {
    name: stat.slice(stat.indexOf("(") + 1, nameEnd),
    parent: Number(fields[1]),
    ownMs: (ticks(11) + ticks(12)) * msPerTick,
    reapedMs: (ticks(13) + ticks(14)) * msPerTick,
  };
}

/** Depth below the agent at which users' processes begin: a guest is a file server with its init as a child. */
const usersDepth = 3;
/**
 * A child of a guest's init that waits for the next exec (native/guest/launcher.h) and belongs to no user. A user's process that takes
 * this name only lets its own sandbox doze.
 */
const waitingName = "cloche-waiting";

export interface Descendants {
  /**
   * CPU time of all processes below the agent. The time of a reaped process is added to its parent, so the sum over living processes
   * is the sum over all that ever ran.
   */
  cpuMs: number;
  /** Number of users' living processes, with those of services and containers. */
  processes: number;
}

export function descendants(ownPid: number = process.pid, procPath = "/proc"): Descendants {
  const processes = new Map<number, ProcessTimes>();
  for (const name of readdirSync(procPath)) {
    if (!/^[0-9]+$/.test(name)) continue;
    try {
      processes.set(Number(name), parseStat(readFileSync(`${procPath}/${name}/stat`, "utf8")));
    } catch {
      // The process ended meanwhile.
    }
  }
  /** Steps below the agent; 0: not below it. */
  const depth = (pid: number): number => {
    for (let at = pid, hops = 1; hops < 1_000; hops += 1) {
      const parent = processes.get(at)?.parent;
      if (parent === undefined || parent === 0) return 0;
      if (parent === ownPid) return hops;
      at = parent;
    }
    return 0;
  };
  const found = { cpuMs: processes.get(ownPid)?.reapedMs ?? 0, processes: 0 };
  for (const [pid, times] of processes) {
    const steps = depth(pid);
    if (steps > 0) found.cpuMs += times.ownMs + times.reapedMs;
    const waits = steps === usersDepth && times.name === waitingName;
    if (steps >= usersDepth && !waits) found.processes += 1;
  }
  return found;
}
