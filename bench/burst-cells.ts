/** Creates that do not wait for each other: one every 200 ms, and all at once. Each to its first successful exec. */
import type { TestService } from "../tests/fixtures/service.ts";
import { openPooled, type Lab, type PooledService } from "./lab.ts";
import type { Batch, Cell } from "./runner.ts";

const intervalMs = 200;
/** What a user without Cloche would do to as many: as many at a time as there are CPUs to run them. */
const runscAtATime = 2;

async function createToExec({ cloche }: PooledService): Promise<{ tookMs: number; remove(): Promise<void> }> {
  const beganMs = performance.now();
  const sandbox = await cloche.create({});
  if (sandbox.domain === "") await sandbox.waitFor("SANDBOX_STATE_RUNNING");
  const { stdout } = await sandbox.exec(["echo", "ready"]);
  const tookMs = performance.now() - beganMs;
  if (stdout !== "ready\n") throw new Error("first exec");
  return { tookMs, remove: () => sandbox.delete() };
}

/** Every `intervalMs` one more begins, whether or not those before have ended. */
async function staggered(count: number, body: () => Promise<number>): Promise<Batch> {
  const timesMs: number[] = [];
  const failures: string[] = [];
  const all: Promise<void>[] = [];
  for (let begun = 0; begun < count; begun += 1) {
    all.push(
      body().then(
        (tookMs) => void timesMs.push(tookMs),
        (error: Error) => void failures.push(error.message),
      ),
    );
    await new Promise((resolve) => setTimeout(resolve, intervalMs));
  }
  await Promise.all(all);
  return { timesMs, failures };
}

export function staggeredCell(lab: Lab, samples: number): { cell: Cell; close(): Promise<void> } {
  const removals: Promise<void>[] = [];
  const cell: Cell = {
    name: `create to first exec, one begun every ${intervalMs} ms`,
    samples: 1,
    // From the first on the pool knows how many are asked for.
    warmups: 1,
    arms: [
      {
        name: "Cloche",
        run: () =>
          staggered(samples, async () => {
            const { tookMs, remove } = await createToExec(lab);
            removals.push(remove());
            return tookMs;
          }),
      },
      {
        name: "runsc run true",
        run: () =>
          staggered(samples, async () => {
            const beganMs = performance.now();
            await lab.runsc.runToEnd(["true"]);
            return performance.now() - beganMs;
          }),
      },
    ],
    targets: [{ arm: "Cloche", against: "runsc run true", atMost: 1, from: "own" }],
    settle: async () => {
      await Promise.all(removals.splice(0));
      await lab.poolFull();
    },
  };
  return { cell, close: async () => undefined };
}

/** The first burst on a service that was asked for none before. */
export async function firstBurstCell(lab: Lab, samples: number, count: number): Promise<OpenBurst> {
  // Where the pool does not grow, every burst is as the first.
  const unprepared = await openPooled(false);
  const { poolSize } = unprepared;
  const cell = burstCell(lab, unprepared, samples, {
    name: `${count} creates at once to the last one's first exec (${poolSize} machines kept ready)`,
    arm: `Cloche, ${count} creates at once, the first such burst`,
    count,
  });
  return { cell, services: [unprepared.service], close: () => unprepared.close() };
}

/** What is kept ready after a burst is there; opened after the other, which a grown pool beside it would slow. */
export function laterBurstCell(lab: Lab, samples: number, count: number): OpenBurst {
  const cell = burstCell(lab, lab, samples, {
    name: `${count} creates at once after another ${count} (${lab.poolSize} machines kept ready, more after a burst)`,
    arm: `Cloche, ${count} creates at once, after another`,
    count,
  });
  return { cell, services: [], close: async () => undefined };
}

interface OpenBurst {
  cell: Cell;
  services: TestService[];
  close(): Promise<void>;
}

function burstCell(
  lab: Lab,
  of: PooledService,
  samples: number,
  { name, arm, count }: { name: string; arm: string; count: number },
): Cell {
  const made: (() => Promise<void>)[] = [];
  const burst = async (): Promise<number> => {
    const beganMs = performance.now();
    const outcomes = await Promise.allSettled(Array.from({ length: count }, () => createToExec(of)));
    const tookMs = performance.now() - beganMs;
    const failed: string[] = [];
    for (const outcome of outcomes) {
      if (outcome.status === "fulfilled") made.push(outcome.value.remove);
      else failed.push((outcome.reason as Error).message);
    }
    if (failed.length > 0) throw new Error(`${failed.length} of ${count} failed: ${failed[0]}`);
    return tookMs;
  };
  const runsc = async (): Promise<void> => {
    let left = count;
    const worker = async (): Promise<void> => {
      while (left > 0) {
        left -= 1;
        await lab.runsc.runToEnd(["true"]);
      }
    };
    await Promise.all(Array.from({ length: runscAtATime }, worker));
  };
  const theirs = `${count} × runsc run true, ${runscAtATime} at a time`;
  return {
    name,
    samples: Math.min(samples, 3),
    warmups: 1,
    arms: [
      { name: arm, run: burst },
      { name: theirs, run: runsc },
    ],
    targets: [{ arm, against: theirs, atMost: 1, from: "issue 6" }],
    settle: async () => {
      for (const remove of made.splice(0)) await remove();
      await lab.poolFull();
      await of.poolFull();
    },
  };
}
