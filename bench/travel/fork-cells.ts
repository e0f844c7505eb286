/** Live fork and restore against runsc's own checkpoint and restore, the source's pause, and what forks share. */
import { execFileSync } from "node:child_process";
import type { Lab } from "../lab.ts";
import type { Cell } from "../runner.ts";
import { diskImage, fill, latestPauseMs, type OpenCell, type Sandbox, shell } from "./shared.ts";

/** Forks that run a first command each, all at once. */
export async function forked(source: Sandbox, count: number): Promise<Sandbox[]> {
  return await Promise.all(
    Array.from({ length: count }, async () => {
      const clone = await source.fork({});
      const { stdout } = await clone.exec(["echo", "forked"]);
      if (stdout !== "forked\n") throw new Error("first exec of a fork");
      return clone;
    }),
  );
}

export async function forkCell(lab: Lab, samples: number): Promise<OpenCell> {
  const source = await lab.cloche.create({ name: "bench-fork" });
  await source.exec(["true"]);
  const first = await source.checkpoints.create({});
  const fork = async (count: number): Promise<number> => {
    const beganMs = performance.now();
    const clones = await forked(source, count);
    const tookMs = performance.now() - beganMs;
    await Promise.all(clones.map((clone) => clone.delete()));
    return tookMs;
  };
  const both = async (of: "sleep" | "agent"): Promise<number> => {
    const { checkpointMs, restoreMs } = await lab.runsc.checkpointAndRestore(of);
    return checkpointMs + restoreMs;
  };
  const cell: Cell = {
    name: "live fork",
    samples,
    warmups: 1,
    arms: [
      { name: "live fork to first exec", run: () => fork(1) },
      { name: "ten live forks to first exec", samples: Math.min(samples, 20), run: () => fork(10) },
      {
        name: "pause of the source",
        run: async () => {
          await fork(1);
          return await latestPauseMs(lab, source.id);
        },
      },
      {
        name: "restore in place to first exec",
        run: async () => {
          const beganMs = performance.now();
          await source.restore(first.checkpoint_id);
          await source.exec(["true"]);
          return performance.now() - beganMs;
        },
      },
      { name: "runsc checkpoint + restore of the agent", run: () => both("agent") },
      { name: "runsc checkpoint + restore of sleep", run: () => both("sleep") },
      { name: "runsc run of the agent", run: () => lab.runsc.runAgent() },
      { name: "runsc do true", run: () => lab.runsc.doTrue() },
    ],
    targets: [
      { arm: "live fork to first exec", against: "runsc do true", atMost: 2.5, from: "issue 26" },
      {
        arm: "live fork to first exec",
        against: "runsc checkpoint + restore of the agent",
        atMost: 1.5,
        from: "issue 4",
      },
      {
        arm: "live fork to first exec",
        against: "runsc checkpoint + restore of the agent",
        atMost: 0.7,
        from: "issue 6",
      },
      {
        arm: "pause of the source",
        against: "runsc checkpoint + restore of the agent",
        atMost: 0.5,
        from: "issue 4",
      },
      { arm: "ten live forks to first exec", against: "live fork to first exec", atMost: 4, from: "issue 4" },
      {
        arm: "restore in place to first exec",
        against: "runsc run of the agent",
        atMost: 1.5,
        from: "issue 4",
      },
      {
        arm: "restore in place to first exec",
        against: "runsc run of the agent",
        atMost: 0.5,
        from: "issue 6",
      },
    ],
    // Ten clones take ten blanks: an arm that met their making would pay for what another left.
    settle: () => lab.poolFull(),
  };
  return {
    cell,
    async close() {
      await source.checkpoints.delete(first.checkpoint_id);
      await source.delete();
    },
  };
}

/** What five forks of a sandbox with 100 MB on disk occupy of the pool, against five copies; "ms" are MiB here. */
export async function sharedDiskCell(lab: Lab): Promise<OpenCell> {
  const source = await lab.cloche.create({ name: "bench-shared" });
  await fill(source, 100);
  const count = 5;
  const cell: Cell = {
    name: "disk of five live forks (MiB)",
    samples: 3,
    warmups: 0,
    arms: [
      {
        name: "blocks the five forks add",
        run: async () => {
          const before = poolUsedMb(lab);
          const clones = await forked(source, count);
          try {
            await Promise.all(clones.map((clone) => clone.exec(shell("sync"))));
            return Math.max(0, poolUsedMb(lab) - before);
          } finally {
            await Promise.all(clones.map((clone) => clone.delete()));
          }
        },
      },
      {
        name: "five copies of the source's disk",
        run: async () => allocatedMb(await diskImage(lab, source)) * count,
      },
    ],
    targets: [
      {
        arm: "blocks the five forks add",
        against: "five copies of the source's disk",
        atMost: 0.5,
        from: "own",
      },
    ],
  };
  return { cell, close: () => source.delete() };
}

/** What the pool's file system says is used. Memory images of the snapshot count while a fork needs them. */
const poolUsedMb = (lab: Lab): number =>
  Number(
    execFileSync("df", ["--output=used", "-m", `${lab.service.home}/pool`], { encoding: "utf8" }).split(
      "\n",
    )[1],
  );

const allocatedMb = (path: string): number =>
  Number(execFileSync("du", ["-m", path], { encoding: "utf8" }).split("\t")[0]);
