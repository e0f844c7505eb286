// `npm run soak [-- minutes]`: a mixed load of all operations on a service of its own, which is killed (kill -9) at random moments
// and started again. At the end every sandbox holds what the model says, no operation outside the kills failed, and nothing is
// left: processes, mounts, loop devices, namespaces, descriptors, disk. CLOCHE_SOAK_SEED replays the choices of a run.
import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { choices } from "../faults/seed.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { grown, type Inventory, inventory } from "../fixtures/inventory.ts";
import { startService } from "../fixtures/service.ts";
import { cutOff, Life } from "./life.ts";

const minutes = Number(process.argv[2] ?? 5);
const LIVES = 3;
/** Between two kills: time to do something, and something to kill it in. */
const KILL_EVERY_S = { least: 20, more: 50 };
const SETTLE_MS = 120_000;
/** What may grow: the log, caches that fill once. */
const GROWTH = { descriptors: 40, diskMb: 64 };

const seed = Number(process.env["CLOCHE_SOAK_SEED"]) || randomInt(1, 2 ** 31 - 1);
console.log(
  `soak of ${minutes} minutes, seed ${seed}: replay with CLOCHE_SOAK_SEED=${seed} npm run soak -- ${minutes}`,
);

const service = await startService({ env: { CLOCHE_WARM_POOL: "1" } });
const client = new Client(service.target());
const until = Date.now() + minutes * 60_000;
const problems: string[] = [];
let kills = 0;
/** Counts up at a kill and again when the service is back: odd while it is away. */
let epoch = 0;
let back: Promise<void> = Promise.resolve();
const samples: number[] = [];

async function attempt<T>(what: string, body: () => Promise<T>): Promise<T | typeof cutOff> {
  await back;
  const began = epoch;
  try {
    return await body();
  } catch (error) {
    // A kill is noticed by whoever it hits before the killer has counted it.
    await sleep(50);
    if (epoch !== began) {
      await back;
      return cutOff;
    }
    throw new Error(`${what} failed outside a kill`, { cause: error });
  }
}

async function killNowAndThen(): Promise<void> {
  const { below } = choices(seed ^ 0x5eed);
  while (Date.now() < until) {
    await sleep(
      Math.min((KILL_EVERY_S.least + below(KILL_EVERY_S.more)) * 1_000, Math.max(0, until - Date.now())),
    );
    if (Date.now() >= until) return;
    kills += 1;
    epoch += 1;
    const { promise, resolve } = Promise.withResolvers<void>();
    back = promise;
    await service.kill9();
    await service.start();
    epoch += 1;
    resolve();
    console.log(`kill ${kills}: back`);
  }
}

interface Census {
  inventory: Inventory;
  descriptors: number;
  residentMb: number;
  diskMb: number;
  machines: string[];
}

function census(): Census {
  const { pid } = service.status;
  const pool = join(service.home, "pool");
  execFileSync("sync", ["-f", pool]);
  const used = execFileSync("df", ["--output=used", "-m", pool], { encoding: "utf8" }).split("\n")[1];
  return {
    inventory: inventory(service.home),
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
    residentMb: resident(pid),
    diskMb: Number(used),
    machines: readdirSync(join(pool, "machines")),
  };
}

/** Kept units and slots are made after the start: counted when two looks in a row agree. */
async function steady(): Promise<Census> {
  let last = census();
  return await eventually(
    async () => {
      await sleep(5_000);
      const now = census();
      const agrees = leaks(last, now).length === 0 && leaks(now, last).length === 0;
      last = now;
      return { now, agrees };
    },
    ({ agrees }) => agrees,
    SETTLE_MS,
  ).then(({ now }) => now);
}

const resident = (pid: number): number =>
  Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) / 1_024;

/** What must not have changed from one quiet service, just started, to another; kept units come and go by name. */
function leaks(before: Census, after: Census): string[] {
  const named = grown(before.inventory, after.inventory);
  const more = (Object.keys(before.inventory) as (keyof Inventory)[]).filter(
    (kind) => after.inventory[kind].length > before.inventory[kind].length,
  );
  const found = named.filter((line) => more.some((kind) => line.startsWith(`${kind}:`)));
  if (after.descriptors > before.descriptors + GROWTH.descriptors)
    found.push(`descriptors: ${before.descriptors} before, ${after.descriptors} after`);
  if (after.diskMb > before.diskMb + GROWTH.diskMb)
    found.push(`disk: ${before.diskMb} MB before, ${after.diskMb} MB after`);
  return [...found, ...after.machines.map((id) => `machine on disk: ${id}`)];
}

/** Deletes what lives that fell ill, and all checkpoints; names sandboxes that nobody knows. */
async function clear(): Promise<void> {
  const { sandboxes } = await client.gateway<{ sandboxes: { id: string; name: string; state: string }[] }>(
    "ListSandboxes",
  );
  for (const { id } of sandboxes) await client.gateway("DeleteSandbox", { id }).catch(() => undefined);
  const { checkpoints } = await client.gateway<{ checkpoints: { id: string }[] }>("ListCheckpoints");
  for (const { id } of checkpoints) await client.gateway("DeleteCheckpoint", { id, checkpoint_id: id });
  const gone = async () => (await client.gateway<{ sandboxes: unknown[] }>("ListSandboxes")).sandboxes.length;
  if ((await eventually(gone, (count) => count === 0, SETTLE_MS)) > 0)
    problems.push("sandboxes that cannot be deleted");
}

const explain = (error: unknown): string =>
  error instanceof Error
    ? `${error.message}${error.cause === undefined ? "" : `: ${explain(error.cause)}`}`
    : String(error);

const lives = Array.from(
  { length: LIVES },
  (_, index) =>
    new Life(
      { client, choices: choices(seed + index), attempt, isOver: () => Date.now() >= until },
      `soak-${index}`,
    ),
);
let left: string[] = [];
try {
  // A first sandbox, so that what is made once is made before it is counted; and a start, as after each kill.
  await client.session.discard((await client.create()).id);
  await clear();
  await service.kill9();
  await service.start();
  const before = await steady();
  const sampling = setInterval(() => {
    if (epoch % 2 === 0) samples.push(resident(service.status.pid));
  }, 10_000);
  const results = await Promise.allSettled([...lives.map((life) => life.run()), killNowAndThen()]);
  clearInterval(sampling);
  for (const result of results) if (result.status === "rejected") problems.push(explain(result.reason));
  await clear();
  await service.kill9();
  await service.start();
  await steady();
  const after = await eventually(census, (now) => leaks(before, now).length === 0, SETTLE_MS);
  problems.push(...leaks(before, after).map((line) => `left over: ${line}`));
  console.log(
    `descriptors ${before.descriptors} → ${after.descriptors}, disk ${before.diskMb} → ${after.diskMb} MB`,
  );
} catch (error) {
  problems.push(explain(error));
} finally {
  if (problems.length > 0) console.log(service.logTail(60));
  await client.close().catch(() => undefined);
  left = await service.destroy();
}
problems.push(...left.map((line) => `left after stop: ${line}`));
const done = lives.map((life) => life.done);
const counts = [...new Set(done.flatMap(Object.keys))].map(
  (kind) => `${kind} ${done.reduce((sum, one) => sum + (one[kind] ?? 0), 0)}`,
);
const third = Math.floor(samples.length / 3);
const mean = (list: readonly number[]): number =>
  list.reduce((sum, one) => sum + one, 0) / Math.max(1, list.length);
console.log(`\n${counts.join(", ")}\nkills ${kills}`);
if (third > 0)
  console.log(
    `memory ${mean(samples.slice(0, third)).toFixed(0)} MB in the first third, ${mean(samples.slice(-third)).toFixed(0)} MB in the last`,
  );
for (const problem of problems) console.log(`PROBLEM: ${problem}`);
console.log(problems.length === 0 ? "soak held" : `soak failed, seed ${seed}`);
process.exitCode = problems.length === 0 ? 0 : 1;
