/** What a sandbox costs that does nothing, and what many of them cost one that works. */
import type { Lab } from "./lab.ts";
import { availableMb, cpuSeconds, pssMb, processTrees, sandboxProcesses } from "./process-figures.ts";
import type { Cell } from "./runner.ts";
import type { OpenCell, Sandbox } from "./travel/shared.ts";

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** How long after its last request a sandbox is looked at. */
const idleAfterMs = 15_000;

/** Milliseconds of CPU in ten seconds of doing nothing. */
async function idleCpuMs(pids: () => Promise<number[]>): Promise<number> {
  const before = cpuSeconds(await pids());
  await sleep(10_000);
  return (cpuSeconds(await pids()) - before) * 1_000;
}

/** The figures stand in the column of times: MiB, and milliseconds of CPU in ten seconds. */
export async function idleCells(
  lab: Lab,
  samples: number,
): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  // Before the pool is full there is no template, and what boots cold keeps some 10 MiB more: few sandboxes ever do.
  await lab.poolFull();
  const sandbox = await lab.cloche.create({ name: "bench-idle" });
  await sandbox.exec(["true"]);
  const sleeper = await lab.runsc.sleepingNode();
  await sleep(idleAfterMs);
  const ours = (): Promise<number[]> => sandboxProcesses(lab, sandbox.id);
  const theirs = async (): Promise<number[]> => processTrees(sleeper.mark);
  const node = "runsc with a sleeping node on the same root";
  const count = Math.min(samples, 20);
  const memory: Cell = {
    name: "idle sandbox, PSS (MiB)",
    samples: count,
    warmups: 0,
    arms: [
      { name: "Cloche, pool", run: async () => pssMb(await ours()) },
      { name: node, run: async () => pssMb(await theirs()) },
    ],
    targets: [{ arm: "Cloche, pool", against: node, atMost: 1.1, from: "issue 6" }],
  };
  const cpu: Cell = {
    name: "idle sandbox, CPU (ms in 10 s)",
    samples: Math.min(samples, 5),
    warmups: 0,
    arms: [
      { name: "Cloche", run: () => idleCpuMs(ours) },
      { name: node, run: () => idleCpuMs(theirs) },
    ],
    targets: [{ arm: "Cloche", against: node, atMost: 0.1, from: "issue 6" }],
  };
  return {
    cells: [memory, cpu],
    async close() {
      await sleeper.end();
      await sandbox.delete();
    },
  };
}

/**
 * A sandbox at work alone, and among idle ones: `most`, or as many as leave 4 GiB of the host's memory. Prints how many,
 * and what each costs of the memory that was available.
 */
export async function crowdCell(lab: Lab, samples: number, most: number): Promise<OpenCell> {
  const busy = await lab.cloche.create({ name: "bench-busy" });
  const exec = async (): Promise<void> => {
    const { stdout } = await busy.exec(["echo", "busy"]);
    if (stdout !== "busy\n") throw new Error("exec of the busy one");
  };
  const aloneMs: number[] = [];
  for (let n = 0; n < samples + 5; n += 1) {
    const beganMs = performance.now();
    await exec();
    if (n >= 5) aloneMs.push(performance.now() - beganMs);
  }
  const before = availableMb();
  const idle: Sandbox[] = [];
  while (idle.length < most && availableMb() > 4_096)
    idle.push(...(await Promise.all([1, 2].map(() => lab.cloche.create({ memory_mb: 256, disk_mb: 1024 })))));
  await sleep(idleAfterMs);
  const each = ((before - availableMb()) / idle.length).toFixed(1);
  console.log(`  ${idle.length} idle sandboxes, ${each} MiB of the host's available memory each`);
  const cell: Cell = {
    name: `exec beside ${idle.length} idle sandboxes`,
    samples,
    arms: [
      { name: "among them", run: exec },
      { name: "before they were there", run: async () => aloneMs.shift() ?? Number.NaN },
    ],
    warmups: 0,
    targets: [{ arm: "among them", against: "before they were there", atMost: 1.5, from: "own" }],
  };
  return {
    cell,
    async close() {
      for (const sandbox of idle) await sandbox.delete();
      await busy.delete();
    },
  };
}
