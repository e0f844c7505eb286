/** Checkpoint, restore, suspend, resume and live fork against full copies and against runsc's own checkpoint and restore. */
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

const run = promisify(execFile);
type Sandbox = Awaited<ReturnType<Lab["cloche"]["create"]>>;

const dataOf = (megabytes: number): string[] => [
  "sh",
  "-c",
  `head -c ${megabytes}M /dev/urandom > /root/data-${megabytes} && sync`,
];

export async function checkpointCell(
  lab: Lab,
  samples: number,
): Promise<{ cell: Cell; close(): Promise<void> }> {
  const small = await lab.cloche.create({ name: "bench-checkpoint-10" });
  const large = await lab.cloche.create({ name: "bench-checkpoint-1024" });
  await small.exec(dataOf(10));
  await large.exec(dataOf(1024));
  const folder = await mkdtemp(join(lab.service.home, "copy-"));
  await run("sh", ["-c", `head -c 1G /dev/urandom > ${folder}/source && sync ${folder}/source`]);
  const taken: { sandbox: Sandbox; id: string }[] = [];
  const checkpoint = async (sandbox: Sandbox): Promise<number> => {
    const beganMs = performance.now();
    const { checkpoint_id: id } = await sandbox.checkpoints.create({});
    const tookMs = performance.now() - beganMs;
    taken.push({ sandbox, id });
    await sandbox.checkpoints.wait(id, { timeout_secs: 120 });
    return tookMs;
  };
  const cell: Cell = {
    name: "checkpoint, answered",
    samples,
    warmups: 1,
    arms: [
      { name: "10 MiB of data", run: () => checkpoint(small) },
      { name: "1 GiB of data", run: () => checkpoint(large) },
      {
        name: "full copy of 1 GiB, fsync",
        samples: Math.min(samples, 5),
        run: async () => {
          const copy = join(folder, "copy");
          const beganMs = performance.now();
          await run("sh", ["-c", `cp --reflink=never ${folder}/source ${copy} && sync ${copy}`]);
          const tookMs = performance.now() - beganMs;
          await rm(copy);
          return tookMs;
        },
      },
    ],
    targets: [
      { arm: "1 GiB of data", against: "10 MiB of data", atMost: 1.3, from: "issue 4" },
      { arm: "1 GiB of data", against: "full copy of 1 GiB, fsync", atMost: 0.03, from: "issue 4" },
    ],
  };
  const close = async (): Promise<void> => {
    for (const { sandbox, id } of taken) await sandbox.checkpoints.delete(id);
    await small.delete();
    await large.delete();
    await rm(folder, { recursive: true, force: true });
  };
  return { cell, close };
}

export async function forkCell(lab: Lab, samples: number): Promise<{ cell: Cell; close(): Promise<void> }> {
  const source = await lab.cloche.create({ name: "bench-fork" });
  await source.exec(["true"]);
  const first = await source.checkpoints.create({});
  const fork = async (count: number): Promise<number> => {
    const beganMs = performance.now();
    const clones = await Promise.all(
      Array.from({ length: count }, async () => {
        const clone = await source.fork({});
        const { stdout } = await clone.exec(["echo", "forked"]);
        if (stdout !== "forked\n") throw new Error("first exec of a fork");
        return clone;
      }),
    );
    const tookMs = performance.now() - beganMs;
    await Promise.all(clones.map((clone) => clone.delete()));
    return tookMs;
  };
  const cell: Cell = {
    name: "time travel",
    samples,
    warmups: 1,
    arms: [
      { name: "live fork to first exec", run: () => fork(1) },
      { name: "ten live forks to first exec", samples: Math.min(samples, 5), run: () => fork(10) },
      {
        name: "restore in place to first exec",
        run: async () => {
          const beganMs = performance.now();
          await source.restore(first.checkpoint_id);
          await source.exec(["true"]);
          return performance.now() - beganMs;
        },
      },
      {
        name: "resume to first exec",
        run: async () => {
          await source.suspend();
          await source.waitFor("SANDBOX_STATE_SUSPENDED");
          const beganMs = performance.now();
          await source.resume();
          await source.waitFor("SANDBOX_STATE_RUNNING");
          await source.exec(["true"]);
          return performance.now() - beganMs;
        },
      },
      {
        name: "runsc checkpoint + restore",
        run: async () => {
          const { checkpointMs, restoreMs } = await lab.runsc.checkpointAndRestore();
          return checkpointMs + restoreMs;
        },
      },
      {
        name: "runsc restore",
        run: async () => (await lab.runsc.checkpointAndRestore()).restoreMs,
      },
      { name: "runsc run of the agent", run: () => lab.runsc.runAgent() },
    ],
    targets: [
      { arm: "live fork to first exec", against: "runsc checkpoint + restore", atMost: 1.5, from: "issue 4" },
      { arm: "ten live forks to first exec", against: "live fork to first exec", atMost: 4, from: "issue 4" },
      {
        arm: "restore in place to first exec",
        against: "runsc run of the agent",
        atMost: 1.5,
        from: "issue 4",
      },
      { arm: "resume to first exec", against: "runsc restore", atMost: 1.2, from: "issue 4" },
    ],
  };
  const close = async (): Promise<void> => {
    await source.delete();
  };
  return { cell, close };
}
