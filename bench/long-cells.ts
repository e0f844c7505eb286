/** Whether a service that has done a thing often does it as fast as at first: forks of forks, creates, checkpoints, restores. */
import { grown, inventory } from "../tests/fixtures/inventory.ts";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";
import type { Sandbox } from "./travel/shared.ts";

/** All times in the order in which they were taken, as a cell of its first and last fifth. */
function firstAndLast(name: string, timesMs: readonly number[]): Cell {
  const fifth = Math.max(1, Math.floor(timesMs.length / 5));
  const first = timesMs.slice(0, fifth);
  const last = timesMs.slice(-fifth);
  const taken = (times: number[]) => async (): Promise<number> => times.shift() ?? Number.NaN;
  return {
    name: `${timesMs.length} ${name}`,
    samples: fifth,
    warmups: 0,
    arms: [
      { name: "last fifth", run: taken(last) },
      { name: "first fifth", run: taken(first) },
    ],
    targets: [{ arm: "last fifth", against: "first fifth", atMost: 1.2, from: "issue 6" }],
  };
}

/** `between` is not timed. */
async function timesOf(
  count: number,
  work: (n: number) => Promise<void>,
  between?: (n: number) => Promise<void>,
): Promise<number[]> {
  const timesMs: number[] = [];
  for (let n = 0; n < count; n += 1) {
    timesMs.push(await timeOf(() => work(n)));
    await between?.(n);
  }
  return timesMs;
}

async function timeOf(work: () => Promise<void>): Promise<number> {
  const beganMs = performance.now();
  await work();
  return performance.now() - beganMs;
}

/**
 * Does it `count` times. What the machine itself became slower or faster by meanwhile are arms of their own: `runsc run true`
 * up to 20 times beside each of the two fifths.
 */
async function inOrder(
  lab: Lab,
  name: string,
  count: number,
  work: (n: number) => Promise<void>,
): Promise<Cell> {
  const beside = { last: [] as number[], first: [] as number[] };
  const fifth = Math.max(1, Math.floor(count / 5));
  const apart = Math.ceil(fifth / 20);
  const timesMs = await timesOf(count, work, async (n) => {
    const reference = n < fifth ? beside.first : n >= count - fifth ? beside.last : undefined;
    if (n % apart === 0) reference?.push(await timeOf(() => lab.runsc.runToEnd(["true"])));
  });
  const cell = firstAndLast(name, timesMs);
  for (const [which, times] of Object.entries(beside)) {
    const run = async (): Promise<number> => times.shift() ?? Number.NaN;
    cell.arms.push({ name: `runsc run true beside the ${which} fifth`, samples: times.length, run });
  }
  return cell;
}

const checked = async (sandbox: Sandbox): Promise<void> => {
  const { exit_code: code } = await sandbox.exec(["true"]);
  if (code !== 0) throw new Error(`exec ended with ${code}`);
};

/** A chain of live forks, each of the one before, which is then deleted. */
export async function forkChain(lab: Lab, depth: number): Promise<Cell> {
  let tip = await lab.cloche.create({ name: "bench-chain" });
  await checked(tip);
  const cell = await inOrder(lab, "forks, each of the one before", depth, async () => {
    const next = await tip.fork({});
    await checked(next);
    await tip.delete();
    tip = next;
  });
  await tip.delete();
  return cell;
}

/** Creates and deletes one after the other; what they leave on the machine fails the cell. */
export async function churn(lab: Lab, count: number): Promise<Cell> {
  const once = async (): Promise<void> => {
    const sandbox = await lab.cloche.create({});
    await checked(sandbox);
    await sandbox.delete();
  };
  await timesOf(3, once);
  const before = inventory(lab.service.home);
  const cell = await inOrder(lab, "creates and deletes", count, once);
  await new Promise((resolve) => setTimeout(resolve, 10_000));
  // The pool of ready machines may be a few deeper or shallower than before, but never by the number of creates.
  const left = grown(before, inventory(lab.service.home));
  const kept = inventory(lab.service.home);
  console.log(
    `  after ${count} creates and deletes: ${kept.processes.length - before.processes.length} processes, ` +
      `${kept.mounts.length - before.mounts.length} mounts, ${kept.loopDevices.length - before.loopDevices.length} loop devices, ` +
      `${kept.namespaces.length - before.namespaces.length} namespaces more than before`,
  );
  if (kept.mounts.length - before.mounts.length > count / 2)
    throw new Error(`left behind: ${left.join("; ")}`);
  return cell;
}

/** Checkpoints of one sandbox that writes a little before each. */
export async function manyCheckpoints(lab: Lab, count: number): Promise<Cell> {
  const sandbox = await lab.cloche.create({ name: "bench-checkpoints" });
  const ids: string[] = [];
  const cell = await inOrder(lab, "checkpoints of one sandbox", count, async (n) => {
    await sandbox.exec([
      "sh",
      "-c",
      `echo ${n} >> /root/log; head -c 64K /dev/urandom > /root/${n % 50}; sync`,
    ]);
    const { checkpoint_id: id } = await sandbox.checkpoints.create({});
    ids.push(id);
  });
  for (const id of ids) {
    await sandbox.checkpoints.wait(id, { timeout_secs: 300 });
    await sandbox.checkpoints.delete(id);
  }
  await sandbox.delete();
  return cell;
}

/** Live forks of a sandbox that is rewound before each: only the fork to its first exec is timed. */
export async function forksAfterRestores(lab: Lab, count: number): Promise<Cell> {
  const sandbox = await lab.cloche.create({ name: "bench-rewound" });
  const { checkpoint_id: id } = await sandbox.checkpoints.create({});
  const timesMs: number[] = [];
  for (let n = 0; n < count; n += 1) {
    await sandbox.restore(id);
    await checked(sandbox);
    await lab.poolFull();
    const beganMs = performance.now();
    const clone = await sandbox.fork({});
    await checked(clone);
    timesMs.push(performance.now() - beganMs);
    await clone.delete();
  }
  await sandbox.checkpoints.delete(id);
  await sandbox.delete();
  return firstAndLast("forks, each after one more restore of their source", timesMs);
}
