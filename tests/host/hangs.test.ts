// Sentries that hang, and ends that nobody was there to tell of: noticed, told, and started again from their disk (docs/faults.md).
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { UnitRecord } from "../../packages/host/src/drivers/gvisor/unit.ts";
import { HostLab } from "./host-lab.ts";

/** They wait most of their time, each for machines of its own. `expect.poll` is the test's where others run beside it. */
describe.concurrent("a machine that hangs", () => {
  let lab: HostLab;
  beforeAll(async () => {
    lab = await HostLab.open(0, { intervalMs: 2_000, hungAfterMs: 6_000 });
  });
  afterAll(async () => {
    await lab.destroyAll();
    expect(await lab.leftovers()).toEqual([]);
    await lab.close();
  });

  const waits = { timeout: 90_000, interval: 200 };
  const wordsOf = async (sandboxId: string): Promise<string> =>
    (await lab.client.getMachine({ sandboxId })).errorMessage;

  const reportsOf = (sandboxId: string): string[] =>
    existsSync(lab.hangsDir) ? readdirSync(lab.hangsDir).filter((name) => name.includes(sandboxId)) : [];

  // A sentry that is stopped as a whole says nothing; one whose agent alone is tells its stacks.
  const hangs = {
    "sentry is stopped": { stop: stopSentry, told: "T (stopped)" },
    "agent is stopped": { stop: stopAgent, told: "goroutine " },
  };
  for (const [whose, { stop, told }] of Object.entries(hangs)) {
    it(`whose ${whose} is noticed, told and brought back from its disk; its stacks are kept, others not touched`, async ({
      expect,
    }) => {
      const { sandboxId } = await lab.create();
      const other = await lab.create();
      await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; sync");
      await lab.exec(other.sandboxId, "sh", "-c", "echo alive > /run/note");
      stop(lab, unitOf(lab, sandboxId));
      await expect
        .poll(() => wordsOf(sandboxId), waits)
        .toMatch(/^started again from its disk: the machine stopped answering/);
      await expect.poll(() => lab.phase(sandboxId), waits).toBe("RUNNING");
      expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
      expect(await lab.exec(other.sandboxId, "cat", "/run/note")).toBe("alive");
      const reports = reportsOf(sandboxId);
      expect(reports).toHaveLength(1);
      const report = join(lab.hangsDir, reports[0] ?? "");
      expect(readFileSync(report, "utf8")).toContain(told);
      expect(statSync(report).mode & 0o777).toBe(0o600);
    });
  }

  it("whose programs hold all descriptors is saved by no call, and brought back from its disk with the reason", async ({
    expect,
  }) => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; mkdir /root/many; sync");
    // Of the host; each file takes two. The limit of a service may be a million.
    execFileSync("prlimit", ["--pid", String(unitOf(lab, sandboxId).sandbox?.pid), "--nofile=1024:1024"]);
    const hold = `import os, time
held = []
try:
    while True: held.append(os.open("/root/many/%d" % len(held), os.O_CREAT))
except OSError: time.sleep(600)`;
    await lab.exec(sandboxId, "sh", "-c", 'setsid python3 -c "$0" > /dev/null 2>&1 & sleep 3', hold);
    const image = join(lab.artifacts.pool.dir, "taken.img");
    const files = { id: sandboxId, dir: join(lab.artifacts.pool.dir, "machines", sandboxId), diskImage: "" };
    const hooks = { flush: async () => undefined, detachDisk: async () => undefined };
    await expect(lab.driver.checkpointDisk(files, image, hooks)).rejects.toThrow(/as many files open/);
    await expect
      .poll(() => wordsOf(sandboxId), waits)
      .toMatch(/^started again from its disk: its programs had as many files open/);
    await expect.poll(() => lab.phase(sandboxId), waits).toBe("RUNNING");
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
  });

  it("that stands still because the host froze it is left alone, and goes on", async ({ expect }) => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo alive > /run/note");
    const files = { id: sandboxId, dir: join(lab.artifacts.pool.dir, "machines", sandboxId), diskImage: "" };
    await lab.driver.freeze(files, true);
    // Longer than one that hangs is given. Were it ended as one, its stacks would be asked for by now, and written once it goes on.
    await new Promise((resolve) => setTimeout(resolve, 12_000));
    await lab.driver.freeze(files, false);
    await new Promise((resolve) => setTimeout(resolve, 3_000));
    expect(reportsOf(sandboxId)).toEqual([]);
    expect(await lab.exec(sandboxId, "cat", "/run/note")).toBe("alive");
  });

  it("whose keeper was killed before it still tells of its end", async ({ expect }) => {
    const { sandboxId } = await lab.create();
    await lab.exec(sandboxId, "sh", "-c", "echo kept > /root/note; sync");
    const { keeper, sandbox } = unitOf(lab, sandboxId);
    process.kill(keeper?.pid ?? 0, "SIGKILL");
    process.kill(sandbox?.pid ?? 0, "SIGKILL");
    // Told by its process; the hang watch would tell of a machine that answers no more.
    await expect
      .poll(() => wordsOf(sandboxId), waits)
      .toMatch(/^started again from its disk: the machine's process ended/);
    await expect.poll(() => lab.phase(sandboxId), waits).toBe("RUNNING");
    expect(await lab.exec(sandboxId, "cat", "/root/note")).toBe("kept");
  });
});

function unitOf(lab: HostLab, sandboxId: string): UnitRecord {
  const units = join(lab.runDir, "gvisor/units");
  const texts = readdirSync(units).map((name) => readFileSync(join(units, name, "unit.json"), "utf8"));
  return JSON.parse(texts.find((text) => text.includes(sandboxId)) ?? "") as UnitRecord;
}

/** All of its threads: the process as a whole. */
function stopSentry(_lab: HostLab, { sandbox }: UnitRecord): void {
  process.kill(sandbox?.pid ?? 0, "SIGSTOP");
}

function stopAgent(lab: HostLab, { name }: UnitRecord): void {
  const root = join(lab.runDir, "gvisor/units", name, "r");
  execFileSync(lab.artifacts.runsc.path, [`--root=${root}`, "kill", name, "SIGSTOP"]);
}
