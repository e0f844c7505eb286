/**
 * Limits, figures and the freezer of a machine's cgroup, on the unified hierarchy (v2) and on the older one (v1, one
 * tree per controller). Owns /<root>/<unit> in every tree. The runtime puts the processes there.
 */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

const mount = "/sys/fs/cgroup";
const cpuPeriodUs = 100_000;
const bytesPerMib = 1024 * 1024;
/** Name of the group that the guard of the host's lease freezes (native/guard). */
const isolatedState = "sentry";
/** Name of the group below it, which we freeze when the machine dozes. A process runs only if both are thawed. */
const dozing = "doze";
const goneTries = 200;
const gonePauseMs = 10;

export interface CgroupFigures {
  cpuMs: number;
  /** Anonymous and shared memory; not the page cache of files. */
  memoryBytes: number;
  processes: number;
}

export interface CgroupLimits {
  cpus: number;
  memoryBytes: number;
  pids: number;
}

/** Share of CPU time among sibling groups when CPUs are busy. */
export type CpuWeight = "usual" | "little";

/** Default of a new group: `cpu.shares` of v1, `cpu.weight` of v2. */
const usualShares = 1_024;
const usualWeight = 100;
/** As shares of v1; on v2 runtimes convert it to a weight of 2. */
const littleShares = 32;

export const cgroupVersion = (): 1 | 2 => (existsSync(join(mount, "cgroup.controllers")) ? 2 : 1);

const cpuQuotaUs = (cpus: number): number => Math.max(1_000, Math.round(cpus * cpuPeriodUs));

/** `resources` of an OCI spec, with which the runtime makes the cgroup. */
export function ociResources(limits: CgroupLimits, weight: CpuWeight): object {
  const quota = { quota: cpuQuotaUs(limits.cpus), period: cpuPeriodUs };
  return {
    cpu: weight === "usual" ? quota : { ...quota, shares: littleShares },
    memory: { limit: limits.memoryBytes },
    pids: { limit: limits.pids },
  };
}

export class Cgroup {
  readonly #path: string;
  readonly #version = cgroupVersion();

  /** `path` begins with a slash, as in an OCI spec's cgroupsPath. */
  constructor(path: string) {
    this.#path = path;
  }

  #file(controller: string, name: string): string {
    return this.#version === 2 ? join(mount, this.#path, name) : join(mount, controller, this.#path, name);
  }

  async limit(limits: CgroupLimits): Promise<void> {
    const set = (controller: string, name: string, value: string | number): Promise<void> =>
      writeFile(this.#file(controller, name), String(value));
    if (this.#version === 2) {
      await set("cpu", "cpu.max", `${cpuQuotaUs(limits.cpus)} ${cpuPeriodUs}`);
      await set("memory", "memory.max", limits.memoryBytes);
      await set("pids", "pids.max", limits.pids);
      return;
    }
    await set("cpu", "cpu.cfs_quota_us", cpuQuotaUs(limits.cpus));
    await set("memory", "memory.limit_in_bytes", limits.memoryBytes);
    await set("pids", "pids.max", limits.pids);
  }

  /** Replaces the memory limit. Throws if more is already in use. */
  async limitMemory(bytes: number): Promise<void> {
    const name = this.#version === 2 ? "memory.max" : "memory.limit_in_bytes";
    await writeFile(this.#file("memory", name), String(bytes));
  }

  /** Gives the group the usual CPU weight. */
  async weighAsUsual(): Promise<void> {
    if (this.#version === 2) await writeFile(this.#file("cpu", "cpu.weight"), String(usualWeight));
    else await writeFile(this.#file("cpu", "cpu.shares"), String(usualShares));
  }

  /**
   * From here on `freeze` freezes only this process, which moves into a group of its own: in the freezer's tree (v1) or the only
   * tree (v2). For a sentry: its stubs wait for it in seccomp notifications. A freeze of the stubs would cancel these and a thaw
   * resend them; counted twice, they end the stub and the user's process (gVisor's issue 14429). Repeatable.
   */
  async isolate(pid: number): Promise<void> {
    const directory = this.#file("freezer", join(isolatedState, dozing));
    if (existsSync(directory)) return;
    await mkdir(directory, { recursive: true });
    await writeFile(join(directory, "cgroup.procs"), String(pid));
  }

  /** The group to freeze for a doze; the whole machine's until `isolate`. */
  get #freezer(): string {
    const isolated = this.#file("freezer", join(isolatedState, dozing));
    return existsSync(isolated) ? isolated : this.#file("freezer", "");
  }

  /** Freezes or thaws the isolated process. Thawed, it continues unless the guard of the lease has frozen it. */
  async freeze(frozen: boolean): Promise<void> {
    await this.#setFrozen(this.#freezer, frozen);
  }

  async #setFrozen(directory: string, frozen: boolean): Promise<void> {
    if (this.#version === 2) await writeFile(join(directory, "cgroup.freeze"), frozen ? "1" : "0");
    else await writeFile(join(directory, "freezer.state"), frozen ? "FROZEN" : "THAWED");
  }

  async figures(): Promise<CgroupFigures> {
    const { cpuMs, memoryBytes } = this.cpuAndMemory();
    return { cpuMs, memoryBytes, processes: (await this.pids()).length };
  }

  /** How many host threads the group has. Synchronous, because it is called often. Throws if the group is gone. */
  tasks(): number {
    return Number(readFileSync(this.#file("pids", "pids.current"), "utf8"));
  }

  /** All memory that counts against the limit, including page cache. Synchronous and cheap: the kernel keeps the number. */
  chargedBytes(): number {
    const name = this.#version === 2 ? "memory.current" : "memory.usage_in_bytes";
    return Number(readFileSync(this.#file("memory", name), "utf8"));
  }

  /** CPU time and memory as in `figures`; synchronous. `privateBytes`: the anonymous part of the memory. */
  cpuAndMemory(): { cpuMs: number; memoryBytes: number; privateBytes: number } {
    const stat = parseFlat(readFileSync(this.#file("memory", "memory.stat"), "utf8"));
    if (this.#version === 2) {
      const cpu = parseFlat(readFileSync(this.#file("cpu", "cpu.stat"), "utf8"));
      const privateBytes = stat.get("anon") ?? 0;
      const memoryBytes = privateBytes + (stat.get("shmem") ?? 0);
      return { cpuMs: (cpu.get("usage_usec") ?? 0) / 1_000, memoryBytes, privateBytes };
    }
    const nanoseconds = Number(readFileSync(this.#file("cpuacct", "cpuacct.usage"), "utf8"));
    // On v1 the sentry's memory file counts as cache; other mapped files are small.
    const privateBytes = stat.get("total_rss") ?? 0;
    const memoryBytes = privateBytes + (stat.get("total_shmem") ?? stat.get("total_cache") ?? 0);
    return { cpuMs: nanoseconds / 1_000_000, memoryBytes, privateBytes };
  }

  /** Whether the kernel's OOM killer killed a process of the group. */
  async outOfMemory(): Promise<boolean> {
    const name = this.#version === 2 ? "memory.events" : "memory.oom_control";
    const text = await readFile(this.#file("memory", name), "utf8").catch(() => "");
    return (parseFlat(text).get("oom_kill") ?? 0) > 0;
  }

  async pids(): Promise<number[]> {
    // On v2 the isolated process is in a group below.
    const groups = ["", isolatedState, join(isolatedState, dozing)];
    const files = groups.map((group) => this.#file("memory", join(group, "cgroup.procs")));
    const texts = await Promise.all(files.map((file) => readFile(file, "utf8").catch(() => "")));
    return texts.join("\n").split("\n").filter(Boolean).map(Number);
  }

  /** Kills all processes of the group, frozen or not. */
  async kill(): Promise<void> {
    // Kill frozen processes before the thaw, so that they never run in between.
    for (const pid of await this.pids()) kill(pid);
    await this.#thawKilled();
  }

  /** Thaws killed processes so that they die: on v1 a frozen process does not. The guard may freeze them again at any time. */
  async #thawKilled(): Promise<void> {
    const outer = this.#file(
      "freezer",
      existsSync(this.#file("freezer", isolatedState)) ? isolatedState : "",
    );
    for (const directory of [this.#freezer, outer])
      await this.#setFrozen(directory, false).catch(() => undefined);
  }

  /** Kills all processes of the group, also those that enter it meanwhile, and removes it from every tree. Repeatable. */
  async destroy(): Promise<void> {
    await this.kill();
    for (const group of [
      join(this.#path, isolatedState, dozing),
      join(this.#path, isolatedState),
      this.#path,
    ]) {
      await removeGroup(group, () => this.kill());
    }
  }
}

/**
 * Removes a cgroup directory of ours from every tree; children must be gone. While the kernel says that processes are in it,
 * calls `empty` and tries again; throws EBUSY after about two seconds. Repeatable.
 */
export async function removeGroup(path: string, empty?: () => Promise<void>): Promise<void> {
  for (const directory of await groupDirectories(path)) {
    for (let i = 0; ; i += 1) {
      try {
        await rmdir(directory);
        break;
      } catch (error) {
        const code = (error as NodeJS.ErrnoException).code;
        if (code === "ENOENT") break;
        if (code !== "EBUSY" || i === goneTries) throw error;
        await empty?.();
        await pause();
      }
    }
  }
}

/** Names of the groups below `path`, in any tree. */
export async function childGroups(path: string): Promise<string[]> {
  const names = new Set<string>();
  for (const directory of await groupDirectories(path)) {
    for (const entry of await readdir(directory, { withFileTypes: true })) {
      if (entry.isDirectory()) names.add(entry.name);
    }
  }
  return [...names];
}

/** Enables the controllers for the children of `path`, without which v2 gives them no limits. */
export async function prepareParent(path: string): Promise<void> {
  if (cgroupVersion() !== 2) return;
  const directory = join(mount, path);
  await mkdir(directory, { recursive: true });
  for (const parent of [mount, directory]) {
    await writeFile(join(parent, "cgroup.subtree_control"), "+cpu +memory +pids");
  }
}

async function groupDirectories(path: string): Promise<string[]> {
  if (cgroupVersion() === 2) return existsSync(join(mount, path)) ? [join(mount, path)] : [];
  const trees = new Set<string>();
  for (const entry of await readdir(mount, { withFileTypes: true })) {
    if (entry.isDirectory()) trees.add(join(mount, entry.name, path));
  }
  return [...trees].filter((directory) => existsSync(directory));
}

function parseFlat(text: string): Map<string, number> {
  return new Map(
    text
      .split("\n")
      .filter(Boolean)
      .map((line) => {
        const [name, value] = line.split(" ");
        return [name ?? "", Number(value)];
      }),
  );
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // Gone by itself.
  }
}

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, gonePauseMs));

export const mibToBytes = (mib: number): number => mib * bytesPerMib;
