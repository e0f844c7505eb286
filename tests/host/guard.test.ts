// The guard of a host's lease (native/guard) with real cgroups: machines here are shells that count in files.
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { silentLog, systemClock } from "@cloche/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { obtainGuard } from "../../packages/artifacts/src/programs/programs.ts";
import { Cgroup, cgroupVersion, removeGroup } from "../../packages/host/src/drivers/cgroup.ts";
import { Guard } from "../../packages/host/src/lease/guard.ts";
import { bootMs } from "../../packages/host/src/lease/boot-clock.ts";
import { inventory } from "../fixtures/inventory.ts";
import { cacheDir, cannotRun, inHome, type Lab, openLab } from "./lab.ts";

const [TREE, MEMORY] = ["freezer", "memory"].map((tree) =>
  join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : tree),
) as [string, string];

let lab: Lab;
let guards: Guard[];
let shells: ChildProcess[];

const directory = (): string => inHome(lab, "guard");

async function newGuard(): Promise<Guard> {
  const guard = new Guard({
    program: await obtainGuard(cacheDir, () => undefined),
    directory: directory(),
    tag: lab.tag,
    native: lab.native,
    clock: systemClock,
    log: silentLog,
  });
  guards.push(guard);
  return guard;
}

/** A shell in a group that is made for it, which counts in the file of its name. */
function machine(name: string, group = `cloche-${lab.tag}/${name}/sentry/doze`) {
  const [freezer, memory] = [join(TREE, group), join(MEMORY, group)];
  for (const path of [freezer, memory]) mkdirSync(path, { recursive: true });
  const file = inHome(lab, name);
  writeFileSync(file, "0");
  const enter = 'for path in "$1" "$2"; do echo 0 > "$path/cgroup.procs"; done';
  const counting = 'n=0; while true; do n=$((n+1)); echo $n > "$3"; sleep 0.005; done';
  shells.push(spawn("sh", ["-c", `${enter}; ${counting}`, "sh", memory, freezer, file], { stdio: "ignore" }));
  const count = (): number => Number(readFileSync(file, "utf8"));
  return {
    /** Until it is in its group. */
    async entered(): Promise<void> {
      await expect.poll(() => readFileSync(join(freezer, "cgroup.procs"), "utf8")).not.toBe("");
    },
    /** Whether it does anything within a while. */
    async runs(): Promise<boolean> {
      const before = count();
      for (let waited = 0; waited < 600; waited += 20) {
        await sleep(20);
        if (count() !== before) return true;
      }
      return false;
    },
  };
}

describe.skipIf(cannotRun)("the guard", () => {
  beforeEach(async () => {
    lab = await openLab();
    guards = [];
    shells = [];
  });
  afterEach(async () => {
    for (const guard of guards) guard.close();
    await (await newGuard()).end();
    expect(existsSync(directory())).toBe(false);
    for (const shell of shells) shell.kill("SIGKILL");
    for (const name of ["a", "b"]) await new Cgroup(`/cloche-${lab.tag}/${name}`).destroy();
    await new Cgroup(`/cloche-${lab.tag}-vm/v`).destroy();
    for (const parent of ["", "-vm"]) await removeGroup(`/cloche-${lab.tag}${parent}`);
    const left = inventory(lab.home);
    expect([...left.processes, ...left.cgroups]).toEqual([]);
    await lab.close();
  });

  it("freezes machines when the deadline passes, without anybody's doing, and thaws them when told", async () => {
    const [a, v] = [machine("a"), machine("v", `cloche-${lab.tag}-vm/v`)];
    const guard = await newGuard();
    await guard.open();
    expect(await guard.until(bootMs() + 1_500)).toMatchObject({ machines: 2, frozen: 0 });
    expect([await a.runs(), await v.runs()]).toEqual([true, true]);
    guard.close();
    await sleep(1_500);
    expect([await a.runs(), await v.runs()]).toEqual([false, false]);
    const next = await newGuard();
    expect(await next.open()).toMatchObject({ machines: 2, frozen: 2 });
    expect(await next.until(bootMs() + 60_000)).toMatchObject({ machines: 2, frozen: 0 });
    expect([await a.runs(), await v.runs()]).toEqual([true, true]);
  });

  it("leaves asleep what dozed before, and what is roused meanwhile stays frozen", async () => {
    const [a, b] = [machine("a"), machine("b")];
    const [groupA, groupB] = ["a", "b"].map((name) => new Cgroup(`/cloche-${lab.tag}/${name}`));
    await groupA?.freeze(true);
    await groupB?.freeze(true);
    const guard = await newGuard();
    await guard.open();
    await guard.until(0);
    await groupB?.freeze(false);
    expect(await b.runs()).toBe(false);
    await guard.until(bootMs() + 60_000);
    expect([await a.runs(), await b.runs()]).toEqual([false, true]);
  });

  it("freezes what is started while the lease is over", async () => {
    const guard = await newGuard();
    expect(await guard.open()).toMatchObject({ untilMs: 0 });
    const a = machine("a");
    await a.entered();
    // Nobody speaks to the guard meanwhile: it looks by itself.
    await expect.poll(() => a.runs(), { timeout: 5_000 }).toBe(false);
    expect(await guard.status()).toMatchObject({ machines: 1, frozen: 1 });
  });

  it("that is killed is replaced at once by the host, with the deadline", async () => {
    const a = machine("a");
    const guard = await newGuard();
    await guard.open();
    const { pid, untilMs } = await guard.until(bootMs() + 3_000);
    process.kill(pid, "SIGKILL");
    await expect.poll(() => readFileSync(join(directory(), "pid"), "utf8").trim()).not.toBe(String(pid));
    expect(await guard.status()).toMatchObject({ untilMs, frozen: 0 });
    guard.close();
    await sleep(Math.max(0, untilMs - bootMs()) + 100);
    expect(await a.runs()).toBe(false);
  });

  it("that stands still is replaced when the host next speaks to it", async () => {
    machine("a");
    const guard = await newGuard();
    await guard.open();
    const { pid } = await guard.until(bootMs() + 60_000);
    process.kill(pid, "SIGSTOP");
    const after = await guard.until(bootMs() + 50_000);
    expect(after.pid).not.toBe(pid);
    expect(after).toMatchObject({ machines: 1, frozen: 0 });
  });

  it.each([60_000, 0])(
    "that takes over keeps the deadline of the one that was killed (%s ms from now)",
    async (ms) => {
      const a = machine("a");
      const guard = await newGuard();
      await guard.open();
      const { pid, untilMs } = await guard.until(ms === 0 ? 0 : bootMs() + ms);
      guard.close();
      process.kill(pid, "SIGKILL");
      await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
      const next = await newGuard();
      const known = await next.open();
      expect(known.pid).not.toBe(pid);
      expect(known).toMatchObject({ untilMs, frozen: ms === 0 ? 1 : 0 });
      expect(await a.runs()).toBe(ms !== 0);
    },
  );

  it("does not keep a frozen machine from being destroyed", async () => {
    await machine("a").entered();
    await machine("b").entered();
    const guard = await newGuard();
    await guard.open();
    await expect.poll(() => guard.status()).toMatchObject({ frozen: 2 });
    await new Cgroup(`/cloche-${lab.tag}/a`).destroy();
    expect(await guard.status()).toMatchObject({ machines: 1, frozen: 1 });
  });

  it("is one an instance, and is counted as what it leaves behind", async () => {
    const [first, second] = [await newGuard(), await newGuard()];
    const [one, other] = await Promise.all([first.open(), second.open()]);
    expect(one.pid).toBe(other.pid);
    expect(inventory(lab.home).processes).toEqual([expect.stringContaining("cloche-guard")]);
  });
});
