/**
 * Runs the arms of a cell interleaved in shuffled order, so that drift of the machine hits all alike, and keeps every
 * sample. An arm checks its own answer: a wrong one counts as a failure, not as a sample.
 */
import { medianRatio, percentile, seeded, shuffled, type Ratio } from "./statistics.ts";

export interface Arm {
  name: string;
  /** One sample; the time it took is measured around it, or answered in ms where set-up must not count. */
  run(): Promise<number | void>;
  /** Samples when fewer than the cell's are enough (slow arms). */
  samples?: number;
}

/** `arm` must take at most `atMost` times `against`; or, with `againstMs`, at most that many milliseconds more. */
export interface Target {
  arm: string;
  against: string;
  atMost: number;
  unit?: "ratio" | "ms-more";
  /** Where the promise stands. */
  from: string;
}

export interface Cell {
  name: string;
  samples: number;
  warmups?: number;
  arms: Arm[];
  targets: Target[];
}

export interface ArmResult {
  arm: string;
  samples: number;
  failures: number;
  firstFailure?: string;
  p50: number;
  p95: number;
  p99: number;
  timesMs: number[];
}

export interface TargetResult extends Target {
  cell: string;
  ratio: Ratio;
  met: boolean;
}

export interface CellResult {
  cell: string;
  arms: ArmResult[];
  targets: TargetResult[];
}

export async function runCell(cell: Cell, seed: number, say: (line: string) => void): Promise<CellResult> {
  const random = seeded(seed);
  const times = new Map<string, number[]>(cell.arms.map((arm) => [arm.name, []]));
  const failures = new Map<string, string[]>(cell.arms.map((arm) => [arm.name, []]));
  for (const arm of cell.arms) {
    for (let warmup = 0; warmup < (cell.warmups ?? 2); warmup += 1) await arm.run().catch(() => undefined);
  }
  for (let round = 0; round < cell.samples; round += 1) {
    const due = cell.arms.filter((arm) => {
      const wanted = arm.samples ?? cell.samples;
      return Math.floor(((round + 1) * wanted) / cell.samples) > Math.floor((round * wanted) / cell.samples);
    });
    for (const arm of shuffled(due, random)) {
      const startedMs = performance.now();
      try {
        const own = await arm.run();
        times.get(arm.name)?.push(own ?? performance.now() - startedMs);
      } catch (error) {
        failures.get(arm.name)?.push((error as Error).message);
      }
    }
  }
  const arms = cell.arms.map((arm) =>
    summarise(arm.name, times.get(arm.name) ?? [], failures.get(arm.name) ?? []),
  );
  const targets = cell.targets.map((target) => judge(cell.name, target, times, seed));
  say(renderCell({ cell: cell.name, arms, targets }));
  return { cell: cell.name, arms, targets };
}

function summarise(arm: string, timesMs: number[], failed: string[]): ArmResult {
  return {
    arm,
    samples: timesMs.length,
    failures: failed.length,
    ...(failed[0] === undefined ? {} : { firstFailure: failed[0] }),
    p50: percentile(timesMs, 50),
    p95: percentile(timesMs, 95),
    p99: percentile(timesMs, 99),
    timesMs,
  };
}

function judge(cell: string, target: Target, times: Map<string, number[]>, seed: number): TargetResult {
  const a = times.get(target.arm) ?? [];
  const b = times.get(target.against) ?? [];
  if (target.unit === "ms-more") {
    const more = percentile(a, 50) - percentile(b, 50);
    return { ...target, cell, ratio: { value: more, low: more, high: more }, met: more <= target.atMost };
  }
  const ratio = medianRatio(a, b, seed);
  return { ...target, cell, ratio, met: ratio.value <= target.atMost };
}

const ms = (value: number): string => (Number.isNaN(value) ? "-" : value.toFixed(value < 10 ? 2 : 1));

export function renderCell(result: CellResult): string {
  const width = Math.max(...result.arms.map((arm) => arm.arm.length), 10);
  const lines = [`\n${result.cell}`, `  ${"arm".padEnd(width)}    n  fail     p50 ms     p95 ms     p99 ms`];
  for (const arm of result.arms) {
    lines.push(
      `  ${arm.arm.padEnd(width)} ${String(arm.samples).padStart(4)} ${String(arm.failures).padStart(5)} ${ms(arm.p50).padStart(10)} ${ms(arm.p95).padStart(10)} ${ms(arm.p99).padStart(10)}`,
    );
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
  return `${verdict} ${target.arm} / ${target.against} = ${value.toFixed(3)}× [${low.toFixed(3)}, ${high.toFixed(3)}] (target ≤ ${target.atMost}×)`;
}
