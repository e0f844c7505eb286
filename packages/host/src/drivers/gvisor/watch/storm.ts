// A fork bomb, as the host sees it: when a machine looks like one is going off in it, and which of its processes are the bomb. Pure.

/** One process as the sentry tells it; numbers of its outermost process namespace. */
export interface SentryProcess {
  readonly pid: number;
  readonly ppid: number;
  readonly pgid: number;
  readonly cmd: string;
}

/** What the cgroup of a machine says at one moment. */
export interface Load {
  readonly atMs: number;
  /** Host tasks: threads of the sentry and of its stubs. The sentry keeps those that it no longer needs. */
  readonly tasks: number;
  readonly cpuMs: number;
  /** Anonymous and shared memory. */
  readonly memoryBytes: number;
}

export interface Memory {
  /** What was asked for the machine. */
  readonly promised: number;
  /** Where the kernel ends it. */
  readonly limit: number;
}

export interface Storm {
  /** All of its processes. */
  readonly pids: readonly number[];
  /** Process groups in which nobody else is: one signal each, where a thousand take a second. */
  readonly groups: readonly number[];
  /** Those in no such group. */
  readonly alone: readonly number[];
  /** The commands of most of them, for the log. */
  readonly commands: Readonly<Record<string, number>>;
}

/** Fewer host tasks than this have no room for a crowd: an idle machine has 30. */
export const CROWD_TASKS = 96;
/** Processes of one program: fewer are no bomb, however much memory they take. */
export const CROWD = 64;
/** Of all that may run, and so many on a machine of any size: of one program, while the agent gets no turn. */
const CROWD_PART = 1 / 2;
const CROWD_MOST = 512;
/** The same while ever more start. */
const GROWING_PART = 1 / 4;
const GROWING_MOST = 256;
/** Started between two looks, beside the odd thread of a program that only allocates. */
const TASKS_STARTED = 16;
/** To notice, to pause, and to kill. */
const AHEAD_MS = 1_000;
/** To ask the agent before. */
const FORESIGHT_MS = 3_000;
/** An agent that has not answered for so long gets no turn, nor does its memory guard (native/guest/memory.c), which needs 10 ms. */
const SILENT_MS = 150;
/** Of one processor: an idle machine uses a hundredth. */
const BUSY = 0.1;
const COMMANDS_TOLD = 4;

/** Whether memory may run out before the machine's own guard gets a turn: soon enough to ask the agent, or to pause it now. */
export function memoryOutlook(
  before: Load,
  now: Load,
  { promised, limit }: Memory,
): "enough" | "soon" | "now" {
  const grown = now.memoryBytes - before.memoryBytes;
  const after = (ms: number): number => now.memoryBytes + (grown * ms) / Math.max(1, now.atMs - before.atMs);
  if (grown <= 0 || after(FORESIGHT_MS) < limit) return "enough";
  return now.memoryBytes > promised && after(AHEAD_MS) >= limit ? "now" : "soon";
}

/** Whether that is a crowd's doing: the guard ends by itself a program that only allocates. `silentMs`: for how long the agent is. */
export const guardIsLate = (before: Load, now: Load, silentMs: number): boolean =>
  now.tasks - before.tasks >= TASKS_STARTED || silentMs >= SILENT_MS;

/** Whether it is worth asking if its agent still gets a turn. */
export const isBusy = (before: Load, now: Load): boolean =>
  now.cpuMs - before.cpuMs >= BUSY * (now.atMs - before.atMs);

/**
 * How many processes of one program are a bomb where the agent gets no turn. `limit`: of all processes (native/guest/guest.c);
 * `tasksStarted`: since it last had one.
 */
export function crowdOf(limit: number, tasksStarted: number): number {
  const growing = tasksStarted >= CROWD;
  const [part, most] = growing ? [GROWING_PART, GROWING_MOST] : [CROWD_PART, CROWD_MOST];
  return Math.max(CROWD, Math.min(limit * part, most));
}

/**
 * The program with by far the most processes, where those are more than `crowd`. A program: all that descends from one exec or
 * service, which stays above even what calls setsid and forks twice; of those that outlived their exec, all of one name.
 *
 *   agent ── spawner ── init ──┬── launcher (of init's process group) ── program …
 *                              └── what outlived its exec …
 */
export function stormOf(processes: readonly SentryProcess[], crowd: number): Storm | undefined {
  const byPid = new Map(processes.map((process) => [process.pid, process]));
  const programs = new Map<string, SentryProcess[]>();
  let users = 0;
  for (const process of processes) {
    const program = programOf(process, byPid);
    if (program === undefined) continue;
    users += 1;
    const members = programs.get(program) ?? [];
    members.push(process);
    programs.set(program, members);
  }
  const [most] = [...programs.values()].toSorted((a, b) => b.length - a.length);
  if (!most || most.length <= crowd || most.length * 2 <= users) return undefined;
  const everybody = groupsOf(processes);
  const own = groupsOf(most);
  const groups = new Set(
    [...own].filter(([pgid, size]) => everybody.get(pgid) === size).map(([pgid]) => pgid),
  );
  return {
    pids: most.map(({ pid }) => pid),
    groups: [...groups],
    alone: most.filter(({ pgid }) => !groups.has(pgid)).map(({ pid }) => pid),
    commands: countCommands(most),
  };
}

/** How many are in each process group. */
function groupsOf(processes: readonly SentryProcess[]): Map<number, number> {
  const sizes = new Map<number, number>();
  for (const { pgid } of processes) sizes.set(pgid, (sizes.get(pgid) ?? 0) + 1);
  return sizes;
}

/** Undefined: it is one of ours, or nobody knows whose. */
function programOf(process: SentryProcess, byPid: ReadonlyMap<number, SentryProcess>): string | undefined {
  const line = lineOf(process, byPid);
  // From the agent down.
  const [, , init, top, below] = line;
  if (!init || !top) return undefined;
  // Users' programs have sessions of their own, so none of them can join init's process group.
  if (top.pgid !== init.pgid) return `${init.pid} ${top.cmd}`;
  return below && `${top.pid}`;
}

/** Its ancestors from the agent down to itself; empty where they do not lead to the agent. */
function lineOf(process: SentryProcess, byPid: ReadonlyMap<number, SentryProcess>): SentryProcess[] {
  const line = [process];
  for (let at = byPid.get(process.ppid); at; at = byPid.get(at.ppid)) {
    // Told by the sentry, which may lie: not for ever.
    if (line.length > byPid.size) return [];
    line.push(at);
  }
  return line.at(-1)?.ppid === 0 ? line.toReversed() : [];
}

function countCommands(processes: readonly SentryProcess[]): Record<string, number> {
  const counts = new Map<string, number>();
  for (const { cmd } of processes) counts.set(cmd, (counts.get(cmd) ?? 0) + 1);
  const most = [...counts].toSorted(([, a], [, b]) => b - a);
  return Object.fromEntries(most.slice(0, COMMANDS_TOLD));
}
