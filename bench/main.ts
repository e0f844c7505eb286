/**
 * `npm run bench -- against <commit>` is in against.ts.
 * `npm run bench [-- groups… group:part… --list --quick --samples N --seed N --record]`: every cell's arms interleaved in shuffled order, a
 * table on standard output, everything as JSON in bench/out/latest.json. Exits with 1 when a target is missed.
 */
import { mkdirSync, writeFileSync } from "node:fs";
import { availableParallelism, release } from "node:os";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import type { TestService } from "../tests/fixtures/service.ts";
import { against } from "./against.ts";
import { cpuMsOf } from "./cpu.ts";
import { bareGroups, type Group, labGroups, namesOf, qemuGroups, wantedOf } from "./groups.ts";
import { openLab, type Lab } from "./lab.ts";
import { openQemuBench, type QemuBench } from "./qemu-cells.ts";
import { type GroupRun, record } from "./record.ts";
import { renderTarget, runCell } from "./runner.ts";

const { values: flags, positionals: wanted } = parseArgs({
  allowPositionals: true,
  options: {
    list: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    record: { type: "boolean", default: false },
    samples: { type: "string" },
    seed: { type: "string" },
  },
});
const most = flags.samples === undefined ? undefined : wholeNumber("--samples", flags.samples);
const seed = flags.seed === undefined ? Date.now() % 1_000_000 : wholeNumber("--seed", flags.seed);

if (wanted[0] === "against") {
  await against(wanted.slice(1), most ?? (flags.quick ? 10 : 40), seed);
  process.exit();
}

let lab: Lab | undefined;
let qemu: QemuBench | undefined;
const withLab = labGroups(() => opened(lab));
const withQemu = qemuGroups(() => opened(qemu));
const all = [...bareGroups, ...withLab, ...withQemu];
const known = all.flatMap(namesOf);
const unknown = wanted.filter((word) => !known.includes(word));
if (unknown.length > 0) {
  console.error(`no group ${unknown.join(", ")}; there are ${known.join(", ")}`);
  process.exit(2);
}
if (flags.record && wanted.some((word) => word.includes(":"))) {
  console.error("--record takes whole groups: a part alone would replace what is kept of the others");
  process.exit(2);
}
if (flags.list) {
  for (const group of all) {
    const [, ...parts] = namesOf(group);
    console.log(`${group.name.padEnd(12)}${group.about}${parts.length > 0 ? ` (${parts.join(", ")})` : ""}`);
  }
  process.exit(0);
}

/** What runs on the machine because of us, newest last: ended in reverse, by whatever ends the run. */
const closers: (() => Promise<void> | void)[] = [];
let ending: Promise<void> | undefined;
const endAll = (): Promise<void> => {
  ending ??= (async () => {
    for (let close = closers.pop(); close !== undefined; close = closers.pop())
      await Promise.resolve(close()).catch((error: unknown) => console.error("at the end:", error));
  })();
  return ending;
};
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
  process.once(signal, () => {
    console.error(`\n${signal}: ending what was started`);
    void endAll().finally(() => process.exit(130));
  });

const machine = `${availableParallelism()} CPUs, Linux ${release()}, Node ${process.version}`;
const at = new Date().toISOString();
console.log(`seed ${seed}; ${machine}; ${at}`);
console.log(`samples: ${most ?? (flags.quick ? "a tenth of the full number, at least 8" : "full")}`);
const runs: GroupRun[] = [];
try {
  for (const group of chosen(bareGroups)) await runGroup(group);
  const onLab = chosen(withLab);
  if (onLab.length > 0) {
    lab = await openLab();
    closers.push(() => lab?.close());
    console.log(`${lab.poolSize} machines kept ready of each kind`);
    for (const group of onLab) await runGroup(group);
    if (ending === undefined) await closers.pop()?.();
    lab = undefined;
  }
  const onQemu = chosen(withQemu);
  if (onQemu.length > 0) {
    qemu = await openQemuBench();
    closers.push(() => qemu?.close());
    for (const group of onQemu) await runGroup(group);
  }
} catch (error) {
  if (ending === undefined) throw error;
} finally {
  await endAll();
  // What was measured is kept whatever else has failed.
  if (runs.length > 0) report();
}

async function runGroup({ name, open }: Group): Promise<void> {
  const results: GroupRun = { group: name, results: [] };
  for (const openOne of open) {
    const made = await openOne(samplesOf);
    closers.push(made.close);
    for (const cell of made.cells ?? (made.cell ? [made.cell] : [])) {
      await lab?.poolFull();
      const cpu = cpuOf(lab === undefined ? [] : [lab.service]);
      results.results.push(await runCell(cell, { seed, say: (line) => console.log(line), ...cpu }));
    }
    closers.splice(closers.lastIndexOf(made.close), 1);
    await made.close();
  }
  runs.push(results);
}

/** Only where a service runs: servers of the benchmark's own that live on are not counted before they end. */
function cpuOf(services: readonly TestService[]): { cpuMs?: () => number } {
  if (services.length === 0) return {};
  return { cpuMs: () => cpuMsOf(services.map(({ status, tag }) => ({ pid: status.pid, tag }))) };
}

function report(): void {
  const targets = runs.flatMap(({ results }) => results.flatMap((result) => result.targets));
  console.log(
    `\nTargets\n${targets.map((target) => `  ${target.cell}: ${renderTarget(target)}`).join("\n")}`,
  );
  const root = fileURLToPath(new URL("../", import.meta.url));
  mkdirSync(`${root}bench/out`, { recursive: true });
  writeFileSync(`${root}bench/out/latest.json`, JSON.stringify({ seed, at, machine, runs }, null, 2));
  if (flags.record) record(root, runs, { at, seed, machine });
  if (targets.some((target) => !target.met)) process.exitCode = 1;
}

function samplesOf(full: number): number {
  if (most !== undefined) return Math.min(most, full);
  return flags.quick ? Math.min(full, Math.max(8, Math.round(full / 10))) : full;
}

function chosen(groups: readonly Group[]): Group[] {
  return groups.flatMap((group) => wantedOf(group, wanted) ?? []);
}

function opened<T>(thing: T | undefined): T {
  if (thing === undefined) throw new Error("opened too early");
  return thing;
}

function wholeNumber(flag: string, text: string): number {
  const number = Number(text);
  if (Number.isInteger(number) && number > 0) return number;
  console.error(`${flag} takes a positive whole number, not ${JSON.stringify(text)}`);
  process.exit(2);
}
