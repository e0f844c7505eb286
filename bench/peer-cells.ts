/** What other services publish: creates by clients, clones, memory snapshots by size, a hundred idle sandboxes (docs/performance.md). */
import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "./lab.ts";
import { availableMb } from "./process-figures.ts";
import type { Batch } from "./runner.ts";
import { type OpenCells, ran, resumed, type Sandbox, shell, suspended, timed } from "./shared.ts";

const clients = [1, 10, 20, 50];
const most = 50;
const clones = [1, 10, 100];
const dirtyMb = [10, 100, 1_000];
const idleSandboxes = 100;
const idleAfterMs = 15_000;

/** Creates begun at once by so many clients: what each waits to its first exec. */
export function clientCells(lab: Lab, samples: number): OpenCells {
  const made: Sandbox[] = [];
  const create = async (): Promise<number> =>
    await timed(async () => {
      const sandbox = await lab.cloche.create({});
      made.push(sandbox);
      await ran(sandbox);
    });
  const theirs = `${most} × runsc run true at once`;
  return {
    cells: [
      {
        name: "create to first exec, by clients at once",
        plot: "clients",
        samples,
        warmups: 0,
        arms: [
          ...clients.map((count) => ({ name: clientsOf(count), run: () => atOnce(count, create) })),
          {
            name: theirs,
            run: () => atOnce(most, () => timed(() => lab.runsc.runToEnd(["true"]))),
          },
        ],
        targets: [{ arm: clientsOf(most), against: theirs, atMost: 2.5, percentile: 95 }],
        settle: async () => {
          for (const sandbox of made.splice(0)) await sandbox.delete();
          await lab.poolFull();
        },
      },
    ],
    close: async () => undefined,
  };
}

const clientsOf = (count: number): string => (count === 1 ? "1 client" : `${count} clients`);

async function atOnce(count: number, work: () => Promise<number>): Promise<Batch> {
  const outcomes = await Promise.allSettled(Array.from({ length: count }, work));
  const batch: Batch = { timesMs: [], failures: [] };
  for (const outcome of outcomes)
    if (outcome.status === "fulfilled") batch.timesMs.push(outcome.value);
    else batch.failures.push((outcome.reason as Error).message);
  return batch;
}

/** Clones of one instant, to the first exec of the last one. */
export async function cloneCells(lab: Lab, samples: number): Promise<OpenCells> {
  const source = await lab.cloche.create({ name: "bench-source" });
  await ran(source);
  const made: Sandbox[] = [];
  const clone = (count: number): Promise<number> =>
    timed(async () => {
      made.push(...(await source.forkMany(count)));
      await Promise.all(made.map((sandbox) => ran(sandbox)));
    });
  return {
    cells: [
      {
        name: "clones of a running sandbox, to the first exec of the last",
        plot: "clones",
        samples,
        warmups: 0,
        arms: clones.map((count) => ({ name: `× ${count}`, run: () => clone(count) })),
        targets: [],
        settle: async () => {
          for (const sandbox of made.splice(0)) await sandbox.delete();
          await lab.poolFull();
        },
      },
    ],
    close: () => source.delete(),
  };
}

/** Memory that a program has written since the sandbox was made. */
export async function memoryCells(lab: Lab, samples: number): Promise<OpenCells> {
  const sandboxes: { megabytes: number; sandbox: Sandbox }[] = [];
  for (const megabytes of dirtyMb) {
    const sandbox = await lab.cloche.create({ name: `bench-dirty-${megabytes}`, memory_mb: 2_048 });
    const holder = `import os, time
held = bytearray(os.urandom(${megabytes}_000_000))
open("/root/held", "w").close()
time.sleep(1e6)`;
    await sandbox.services.put("holder", { cmd: "python3", args: ["-c", holder] });
    await sandbox.services.start("holder");
    await ran(sandbox, shell("until [ -e /root/held ]; do sleep 0.1; done"));
    sandboxes.push({ megabytes, sandbox });
  }
  const cell = (name: string, plot: string, run: (sandbox: Sandbox) => Promise<number>) => ({
    name,
    plot,
    samples,
    warmups: 1,
    arms: sandboxes.map(({ megabytes, sandbox }) => ({ name: `${megabytes} MB`, run: () => run(sandbox) })),
    targets: [],
  });
  return {
    cells: [
      cell("suspend: snapshot of memory and disk, by memory written", "suspend", async (sandbox) => {
        const tookMs = await timed(() => suspended(sandbox));
        await resumed(sandbox, true);
        return tookMs;
      }),
      cell("resume to first exec, by memory written", "resume", async (sandbox) => {
        await suspended(sandbox);
        return await timed(() => resumed(sandbox, true));
      }),
    ],
    async close() {
      for (const { sandbox } of sandboxes) await sandbox.delete();
    },
  };
}

/** A sandbox at work alone and among idle ones, and what each of these costs of the host's available memory. */
export async function idleCrowdCells(lab: Lab, samples: number): Promise<OpenCells> {
  const busy = await lab.cloche.create({ name: "bench-busy" });
  const exec = (): Promise<number> => timed(() => ran(busy));
  const aloneMs: number[] = [];
  for (let n = 0; n < samples + 5; n += 1) {
    const tookMs = await exec();
    if (n >= 5) aloneMs.push(tookMs);
  }
  const beforeMb = availableMb();
  const idle: Sandbox[] = [];
  while (idle.length < idleSandboxes) {
    const sandbox = await lab.cloche.create({});
    await ran(sandbox);
    idle.push(sandbox);
  }
  await sleep(idleAfterMs);
  const eachMb = (beforeMb - availableMb()) / idleSandboxes;
  return {
    cells: [
      {
        name: `exec beside ${idleSandboxes} idle sandboxes`,
        samples,
        warmups: 0,
        arms: [
          { name: `beside ${idleSandboxes} idle sandboxes`, run: exec },
          { name: "alone", run: async () => aloneMs.shift() ?? Number.NaN },
        ],
        targets: [{ arm: `beside ${idleSandboxes} idle sandboxes`, against: "alone", atMost: 1.5 }],
      },
      {
        name: "memory of an idle sandbox (MiB)",
        plot: "idle-memory",
        samples: 1,
        warmups: 0,
        arms: [{ name: `${idleSandboxes} idle sandboxes, each`, run: async () => eachMb }],
        targets: [],
      },
    ],
    async close() {
      for (const sandbox of idle) await sandbox.delete();
      await busy.delete();
    },
  };
}
