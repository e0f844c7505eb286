// The memory guard sleeps while nothing runs, for up to five seconds. A program may fill the memory in that time, so it does not
// sleep while one is on its way that the kernel does not count yet: an exec whose launcher waits for its turn, or a container.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { cgroupVersion } from "../../packages/host/src/drivers/cgroup.ts";
import { guestBinary, guestOptions, isGvisor, isRoot, makeDisk, until } from "./guest-fixture.ts";

/** Longer than its looks without a program before it sleeps: three of two seconds each, with much memory. */
const LOOKS_MS = 7_000;
const env = { PATH: "/bin:/usr/bin" };

let spawner: NativeSpawner;
let disk: string;
beforeAll(async () => {
  if (!isRoot || isGvisor) return;
  disk = makeDisk();
  spawner = new NativeSpawner(await guestBinary(), { ...guestOptions, memoryGuard: true });
  await spawner.attach(disk);
});
afterAll(async () => {
  await spawner?.detach();
  if (disk) rmSync(disk, { recursive: true, force: true });
  // A guest with a guard leaves it, since in gVisor the next one uses it.
  const limits = join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : "pids", `cloche-guests-${process.pid}`);
  if (existsSync(limits)) rmdirSync(limits);
});

/** Children of `parent` with this name. */
const childrenOf = (parent: number, name: string): number[] =>
  readdirSync("/proc").flatMap((pid) => {
    try {
      const status = readFileSync(`/proc/${pid}/status`, "utf8");
      return status.startsWith(`Name:\t${name}\n`) && status.includes(`\nPPid:\t${parent}\n`)
        ? [Number(pid)]
        : [];
    } catch {
      return []; // no process, or it has ended
    }
  });

const fileServer = (): number => childrenOf(process.pid, "cloche-files")[0] ?? 0;

/** Whether a thread of the file server waits for a bell: FUTEX_WAIT across processes, which no other thread does. */
const isAsleep = (): boolean =>
  readdirSync(`/proc/${fileServer()}/task`).some((thread) =>
    /^202 0x\w+ 0x0 /.test(readFileSync(`/proc/${fileServer()}/task/${thread}/syscall`, "utf8")),
  );

async function expectAwake(): Promise<void> {
  await until("it is awake", () => !isAsleep());
  for (const end = performance.now() + LOOKS_MS; performance.now() < end; await sleep(50))
    expect(isAsleep()).toBe(false);
}

function isRemoved(group: string): boolean {
  try {
    rmdirSync(group);
    return true;
  } catch {
    return false;
  }
}

/** Keeps a process from running, whatever signals it gets; the answer lets it go on. */
function freeze(pid: number): () => void {
  const root = join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : "freezer");
  const group = join(root, `cloche-memory-guard-${process.pid}`);
  const [file, on, off] =
    cgroupVersion() === 2 ? ["cgroup.freeze", "1", "0"] : ["freezer.state", "FROZEN", "THAWED"];
  mkdirSync(group);
  // Where the test failed, the program may still be in it.
  onTestFinished(() => until("nothing is left in its group", () => isRemoved(group)));
  writeFileSync(join(group, "cgroup.procs"), String(pid));
  writeFileSync(join(group, file), on);
  return () => {
    writeFileSync(join(group, file), off);
    writeFileSync(join(root, "cgroup.procs"), String(pid));
  };
}

describe.skipIf(!isRoot || isGvisor || process.arch !== "x64")("the memory guard", () => {
  it("does not sleep while an exec's launcher waits for its turn", async () => {
    const [init = 0] = childrenOf(fileServer(), "cloche-init");
    await until("a launcher that waits", () => childrenOf(init, "cloche-waiting").length === 1);
    await until("nothing runs", isAsleep);
    const thaw = freeze(childrenOf(init, "cloche-waiting")[0] ?? 0);
    const exec = spawner.guest.launch({ argv: ["true"], env });
    await expectAwake().finally(thaw);
    expect(await exec.exited).toEqual({ code: 0, signal: null });
    await until("nothing runs", isAsleep);
  });

  it("does not sleep while a container is open", async () => {
    const root = makeDisk();
    onTestFinished(() => rmSync(root, { recursive: true, force: true }));
    await until("nothing runs", isAsleep);
    const container = await spawner.openContainer("one", { root: join(root, "fs") });
    await expectAwake();
    await container.close();
    await until("nothing runs", isAsleep);
  });
});
