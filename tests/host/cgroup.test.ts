// The removal of a machine's cgroup while a program enters it, as after a start that failed half-way.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Cgroup, cgroupVersion, removeGroup } from "../../packages/host/src/drivers/cgroup.ts";
import { cannotRun, type Lab, openLab } from "./lab.ts";

const [FREEZER, MEMORY] = ["freezer", "memory"].map((tree) =>
  join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : tree),
) as [string, string];
const PROGRAMS = 3;

let lab: Lab;
let programs: ChildProcess[];

/** A group that a program enters each time somebody has found it empty, the first three times. */
class EnteredLate extends Cgroup {
  readonly directory: string;

  constructor(path: string, below: string) {
    super(path);
    this.directory = join(MEMORY, path, below);
  }

  override async pids(): Promise<number[]> {
    const found = await super.pids();
    if (found.length > 0 || programs.length === PROGRAMS) return found;
    const enter = 'echo 0 > "$1/cgroup.procs" && exec sleep 300';
    programs.push(spawn("sh", ["-c", enter, "sh", this.directory], { stdio: "ignore" }));
    await expect.poll(() => readFileSync(join(this.directory, "cgroup.procs"), "utf8")).not.toBe("");
    return found;
  }
}

describe.skipIf(cannotRun)("a machine's cgroup", () => {
  beforeEach(async () => {
    lab = await openLab();
    programs = [];
  });
  afterEach(async () => {
    for (const program of programs) program.kill("SIGKILL");
    await new Cgroup(`/cloche-${lab.tag}/late`).destroy();
    await removeGroup(`/cloche-${lab.tag}`);
    await lab.close();
  });

  it.each(["", "sentry/doze"])("is removed although programs enter it (%s)", async (below) => {
    const group = `/cloche-${lab.tag}/late`;
    for (const tree of [MEMORY, FREEZER]) mkdirSync(join(tree, group, below), { recursive: true });
    await new EnteredLate(group, below).destroy();
    expect([MEMORY, FREEZER].filter((tree) => existsSync(join(tree, group)))).toEqual([]);
    expect(programs.length).toBeGreaterThan(0);
    for (const program of programs) if (program.signalCode === null) await once(program, "exit");
    expect(programs.map((program) => program.signalCode)).toEqual(programs.map(() => "SIGKILL"));
  });
});
