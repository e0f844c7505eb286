/** What a sandbox costs that does nothing. The figures stand in the column of times: MiB, and milliseconds of CPU in ten seconds. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "./lab.ts";
import { cpuSeconds, pssMb, processTrees, sandboxProcesses } from "./process-figures.ts";
import type { OpenCells } from "./shared.ts";

/** How long after its last request a sandbox is looked at, and for how long. */
const idleAfterMs = 15_000;
const lookMs = 10_000;

async function idleCpuMs(pids: () => Promise<number[]>): Promise<number> {
  const before = cpuSeconds(await pids());
  await sleep(lookMs);
  return (cpuSeconds(await pids()) - before) * 1_000;
}

export async function idleCells(lab: Lab, samples: number): Promise<OpenCells> {
  // Before the pool is full there is no template, and what boots cold keeps some 10 MiB more: few sandboxes ever do.
  await lab.poolFull();
  const sandbox = await lab.cloche.create({ name: "bench-idle" });
  await sandbox.exec(["true"]);
  const sleeper = await lab.runsc.sleepingNode();
  await sleep(idleAfterMs);
  const ours = (): Promise<number[]> => sandboxProcesses(lab, sandbox.id);
  const theirs = async (): Promise<number[]> => processTrees(sleeper.mark);
  const idle = "idle sandbox";
  const node = "runsc with a sleeping node";
  return {
    cells: [
      {
        name: "idle sandbox, PSS (MiB)",
        samples,
        warmups: 0,
        arms: [
          { name: `${idle}, memory`, run: async () => pssMb(await ours()) },
          { name: `${node}, memory`, run: async () => pssMb(await theirs()) },
        ],
        targets: [{ arm: `${idle}, memory`, against: `${node}, memory`, atMost: 1.3 }],
      },
      {
        name: "idle sandbox, CPU (ms in 10 s)",
        samples,
        warmups: 0,
        arms: [
          { name: `${idle}, CPU`, run: () => idleCpuMs(ours) },
          { name: `${node}, CPU`, run: () => idleCpuMs(theirs) },
        ],
        targets: [{ arm: `${idle}, CPU`, against: `${node}, CPU`, atMost: 20, unit: "ms-more" }],
      },
    ],
    async close() {
      await sleeper.end();
      await sandbox.delete();
    },
  };
}
