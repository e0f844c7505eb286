/** Whether the last of many creates and deletes is as fast as the first; what they leave on the machine fails the cell. */
import { setTimeout as sleep } from "node:timers/promises";
import { grown, inventory } from "../tests/fixtures/inventory.ts";
import type { Lab } from "./lab.ts";
import { type OpenCells, ran, timed } from "./shared.ts";

/** The pool and what is torn down behind an answer come to rest. */
const restMs = 10_000;

export async function driftCell(lab: Lab, count: number): Promise<OpenCells> {
  const once = async (): Promise<void> => {
    const sandbox = await lab.cloche.create({});
    await ran(sandbox);
    await sandbox.delete();
  };
  for (let warmup = 0; warmup < 10; warmup += 1) await once();
  const before = inventory(lab.service.home);
  const timesMs: number[] = [];
  while (timesMs.length < count) timesMs.push(await timed(once));
  await sleep(restMs);
  // The pool of ready machines may be a few deeper or shallower than before, but never by the number of creates.
  const after = inventory(lab.service.home);
  if (after.mounts.length - before.mounts.length > count / 2)
    throw new Error(`left behind: ${grown(before, after).join("; ")}`);
  const fifth = Math.floor(count / 5);
  const taken = (times: number[]) => async (): Promise<number> => times.shift() ?? Number.NaN;
  const cell = {
    name: `${count} creates and deletes`,
    samples: fifth,
    warmups: 0,
    arms: [
      { name: "last fifth", run: taken(timesMs.slice(-fifth)) },
      { name: "first fifth", run: taken(timesMs.slice(0, fifth)) },
    ],
    targets: [{ arm: "last fifth", against: "first fifth", atMost: 1.5 }],
  };
  return { cells: [cell], close: async () => undefined };
}
