/**
 * Decides from the host's figures whether a machine may have a fork bomb, and which of its processes are the bomb. Pure.
 */

/** One process as the sentry reports it; ids are of its outermost pid namespace. */
export interface SentryProcess {
  readonly pid: number;
  readonly ppid: number;
  readonly pgid: number;
  readonly cmd: string;
}

/** Figures of a machine's cgroup at one moment. */
export interface Load {
  readonly atMs: number;
  /** Host tasks: threads of the sentry and its stubs. The sentry keeps threads that it no longer needs. */
  readonly tasks: number;
  readonly cpuMs: number;
  /** Anonymous and shared memory. */
  readonly memoryBytes: number;
}

export interface Memory {
  /** The size requested for the machine. */
  readonly promised: number;
  /** Above this the kernel kills the machine. */
  readonly limit: number;
}

export interface Storm {
  /** All of its processes. */
  readonly pids: readonly number[];
  /** Process groups with no other processes: one signal kills a group. A thousand signals take a second. */
  readonly groups: readonly number[];
  /** The processes in no such group. */
  readonly alone: readonly number[];
  /** The commands of most of them, for the log. */
  readonly commands: Readonly<Record<string, number>>;
}

/** Fewer host tasks than this have no room for a crowd: an idle machine has 30. */
export const crowdTasks = 96;
/** Fewer processes of one program are no bomb, however much memory they take. */
export const crowdedBy = 64;
/** While the agent does not answer, a program with this part of the process limit is a bomb; at most crowdMost are needed. */
const crowdPart = 1 / 2;
const crowdMost = 512;
/** The same while many more processes start. */
const growingPart = 1 / 4;
const growingMost = 256;
/** Tasks started between two looks that count as a crowd: more than a program starts that only allocates. */
const tasksStartedMin = 16;
/** Time to notice, to pause, and to kill. */
const aheadMs = 1_000;
/** The same, with time to ask the agent first. */
const foresightMs = 3_000;
/** An agent silent for this long gets no CPU time, and neither does its memory guard (native/guest/memory.c), which needs 10 ms. */
const silentLimitMs = 150;
/** Share of one CPU. An idle machine uses a hundredth. */
const busy = 0.1;
const commandsReported = 4;

/** Whether memory may run out. soon: ask the agent first. now: before the machine's own guard may act, so pause the machine. */
export function memoryForecast(
  before: Load,
  now: Load,
  { promised, limit }: Memory,
): "enough" | "soon" | "now" {
  const grown = now.memoryBytes - before.memoryBytes;
  const after = (ms: number): number => now.memoryBytes + (grown * ms) / Math.max(1, now.atMs - before.atMs);
  if (grown <= 0 || after(foresightMs) < limit) return "enough";
  return now.memoryBytes > promised && after(aheadMs) >= limit ? "now" : "soon";
}

/** Whether the guest's memory guard may come too late: many tasks start, or the agent is silent for `silentMs`. */
export const guardIsLate = (before: Load, now: Load, silentMs: number): boolean =>
  now.tasks - before.tasks >= tasksStartedMin || silentMs >= silentLimitMs;

/** Whether the machine is busy enough to ask whether its agent still answers. */
export const isBusy = (before: Load, now: Load): boolean =>
  now.cpuMs - before.cpuMs >= busy * (now.atMs - before.atMs);

/**
 * A program with more processes than this is a bomb if the agent does not answer. `limit`: of all processes (native/guest/guest.c).
 * `tasksStarted`: since the agent stopped answering.
 */
export function crowdOf(limit: number, tasksStarted: number): number {
  const growing = tasksStarted >= crowdedBy;
  const [part, most] = growing ? [growingPart, growingMost] : [crowdPart, crowdMost];
  return Math.max(crowdedBy, Math.min(limit * part, most));
}

/**
 * The program that has by far the most processes, if it has more than `crowd`. A program is all descendants of one exec or service:
 * its launcher stays their ancestor even after setsid and a double fork. Processes that outlived their exec are grouped by name.
 *
 *   agent ── spawner ── init ──┬── launcher (of init's process group) ── program …
 *                              └── a process that outlived its exec …
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

/** The size of each process group. */
function groupsOf(processes: readonly SentryProcess[]): Map<number, number> {
  const sizes = new Map<number, number>();
  for (const { pgid } of processes) sizes.set(pgid, (sizes.get(pgid) ?? 0) + 1);
  return sizes;
}

/** Names the program of a process. Undefined: a process of ours, or of unknown descent. */
function programOf(process: SentryProcess, byPid: ReadonlyMap<number, SentryProcess>): string | undefined {
  const line = lineOf(process, byPid);
  // From the agent down.
  const [, , init, top, below] = line;
  if (!init || !top) return undefined;
  // Users' programs have sessions of their own, so none of them can join init's process group.
  if (top.pgid !== init.pgid) return `${init.pid} ${top.cmd}`;
  return below && `${top.pid}`;
}

/** The process and its ancestors, from the agent down; empty if they do not lead to the agent. */
function lineOf(process: SentryProcess, byPid: ReadonlyMap<number, SentryProcess>): SentryProcess[] {
  const line = [process];
  for (let at = byPid.get(process.ppid); at; at = byPid.get(at.ppid)) {
    // The sentry may lie about parents: do not loop for ever.
    if (line.length > byPid.size) return [];
    line.push(at);
  }
  return line.at(-1)?.ppid === 0 ? line.toReversed() : [];
}

function countCommands(processes: readonly SentryProcess[]): Record<string, number> {
  const counts = new Map<string, number>();
  for (const { cmd } of processes) counts.set(cmd, (counts.get(cmd) ?? 0) + 1);
  const most = [...counts].toSorted(([, a], [, b]) => b - a);
  return Object.fromEntries(most.slice(0, commandsReported));
}
