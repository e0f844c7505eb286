/**
 * Runs the arms of a cell interleaved in shuffled order, so that drift of the machine hits all alike, and keeps every
 * sample. An arm checks its own answer: a wrong one counts as a failure, not as a sample.
 */
import { percentile, percentileRatio, seeded, shuffled, type Ratio } from "./statistics.ts";

/** Several samples that one run took, such as creates that overlap. */
export interface Batch {
  timesMs: number[];
  failures: string[];
}

export interface Arm {
  name: string;
  /** One sample; the time it took is measured around it, or answered in ms where set-up must not count. */
  run(): Promise<number | Batch | void>;
  /** Samples when fewer than the cell's are enough (slow arms). */
  samples?: number;
}

/** `arm` must take at most `atMost` times `against`; or, with "ms-more", at most that many milliseconds more. */
export interface Target {
  arm: string;
  against: string;
  atMost: number;
  unit?: "ratio" | "ms-more";
  /** Of a ratio: which percentile of each arm is compared; default 50. */
  percentile?: 95;
}

export interface Cell {
  name: string;
  /** Its plot in docs/plots, by name, when it is recorded. */
  plot?: string;
  samples: number;
  warmups?: number;
  arms: Arm[];
  targets: Target[];
  /** Waits, untimed, until a sample's aftermath is over: what it costs is its own, and no other arm meets it. */
  settle?(): Promise<void>;
}

export interface ArmResult {
  arm: string;
  samples: number;
  failures: number;
  firstFailure?: string;
  p50: number;
  p95: number;
  p99: number;
  /** CPU time of the whole service and of what the benchmark started, per sample. */
  cpuMs?: number;
  timesMs: number[];
}

export interface TargetResult extends Target {
  cell: string;
  ratio: Ratio;
  met: boolean;
}

export interface CellResult {
  cell: string;
  plot?: string;
  arms: ArmResult[];
  targets: TargetResult[];
}

export interface RunOptions {
  seed: number;
  say(line: string): void;
  /** CPU milliseconds spent so far by the service and the benchmark's children. */
  cpuMs?(): number;
}

interface Taken {
  timesMs: number[];
  failures: string[];
  cpuMs: number;
}

export async function runCell(cell: Cell, { seed, say, cpuMs }: RunOptions): Promise<CellResult> {
  const random = seeded(seed);
  const taken = new Map<string, Taken>(
    cell.arms.map(({ name }) => [name, { timesMs: [], failures: [], cpuMs: 0 }]),
  );
  for (const arm of cell.arms) {
    for (let warmup = 0; warmup < (cell.warmups ?? 2); warmup += 1) await arm.run().catch(() => undefined);
  }
  await cell.settle?.();
  for (let round = 0; round < cell.samples; round += 1) {
    const due = cell.arms.filter((arm) => {
      const wanted = Math.min(arm.samples ?? cell.samples, cell.samples);
      return Math.floor(((round + 1) * wanted) / cell.samples) > Math.floor((round * wanted) / cell.samples);
    });
    for (const arm of shuffled(due, random)) {
      const into = taken.get(arm.name);
      if (into === undefined) continue;
      const cpuBefore = cpuMs?.() ?? 0;
      await sample(arm, into);
      await cell.settle?.();
      into.cpuMs += (cpuMs?.() ?? 0) - cpuBefore;
    }
  }
  const arms = [...taken].map(([name, one]) => summarise(name, one, cpuMs !== undefined));
  const targets = cell.targets.map((target) => judge(cell.name, target, taken, seed));
  const result = { cell: cell.name, ...(cell.plot === undefined ? {} : { plot: cell.plot }), arms, targets };
  say(renderCell(result));
  return result;
}

async function sample(arm: Arm, into: Taken): Promise<void> {
  const startedMs = performance.now();
  try {
    const own = await arm.run();
    if (typeof own === "object") {
      into.timesMs.push(...own.timesMs);
      into.failures.push(...own.failures);
    } else into.timesMs.push(own ?? performance.now() - startedMs);
  } catch (error) {
    into.failures.push((error as Error).message);
  }
}

function summarise(arm: string, { timesMs, failures, cpuMs }: Taken, hasCpu: boolean): ArmResult {
  const tries = timesMs.length + failures.length;
  return {
    arm,
    samples: timesMs.length,
    failures: failures.length,
    ...(failures[0] === undefined ? {} : { firstFailure: failures[0] }),
    p50: percentile(timesMs, 50),
    p95: percentile(timesMs, 95),
    p99: percentile(timesMs, 99),
    ...(hasCpu && tries > 0 ? { cpuMs: cpuMs / tries } : {}),
    timesMs,
  };
}

/** An arm that failed even once meets nothing. */
function judge(cell: string, target: Target, taken: Map<string, Taken>, seed: number): TargetResult {
  const a = taken.get(target.arm)?.timesMs ?? [];
  const b = taken.get(target.against)?.timesMs ?? [];
  const failed = taken.get(target.arm)?.failures.length !== 0;
  if (target.unit === "ms-more") {
    const more = percentile(a, 50) - percentile(b, 50);
    const ratio = { value: more, low: more, high: more };
    return { ...target, cell, ratio, met: !failed && more <= target.atMost };
  }
  const ratio = percentileRatio(a, b, { p: target.percentile ?? 50, seed });
  return { ...target, cell, ratio, met: !failed && ratio.value <= target.atMost };
}

const ms = (value: number | undefined): string =>
  value === undefined || Number.isNaN(value) ? "-" : value.toFixed(value < 10 ? 2 : 1);

export function renderCell(result: CellResult): string {
  const width = Math.max(...result.arms.map((arm) => arm.arm.length), 10);
  const heads = ["n", "ok %", "p50 ms", "p95 ms", "p99 ms", "CPU ms"];
  const columns = (cells: string[]): string => cells.map((cell) => cell.padStart(10)).join("");
  const lines = [`\n${result.cell}`, `  ${"arm".padEnd(width)}${columns(heads)}`];
  for (const arm of result.arms) {
    const tries = arm.samples + arm.failures;
    const ok = tries === 0 ? "-" : ((100 * arm.samples) / tries).toFixed(arm.failures > 0 ? 1 : 0);
    const cells = [String(arm.samples), ok, ms(arm.p50), ms(arm.p95), ms(arm.p99), ms(arm.cpuMs)];
    lines.push(`  ${arm.arm.padEnd(width)}${columns(cells)}`);
    if (arm.firstFailure !== undefined) lines.push(`    first failure: ${arm.firstFailure}`);
  }
  for (const target of result.targets) lines.push(`  ${renderTarget(target)}`);
  return lines.join("\n");
}

export function renderTarget(target: TargetResult): string {
  const verdict = target.met ? "met   " : "MISSED";
  if (target.unit === "ms-more") {
    return `${verdict} ${target.arm} − ${target.against} = ${target.ratio.value.toFixed(2)} ms (target ≤ ${target.atMost} ms)`;
  }
  const { value, low, high } = target.ratio;
  const of = target.percentile === undefined ? "" : `p${target.percentile} of `;
  return `${verdict} ${of}${target.arm} / ${target.against} = ${value.toFixed(3)}× [${low.toFixed(3)}, ${high.toFixed(3)}] (target ≤ ${target.atMost}×)`;
}
