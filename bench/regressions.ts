import { type GroupRun, keyOf } from "./record.ts";
import type { TargetResult } from "./runner.ts";

const tolerated = 1.2;

/** What became slower by more than a fifth, beyond noise: a line each. */
export function regressions(
  runs: readonly GroupRun[],
  recorded: ReadonlyMap<string, TargetResult>,
): string[] {
  const found: string[] = [];
  for (const { group, results } of runs)
    for (const { targets } of results)
      for (const target of targets) {
        const key = keyOf(group, target);
        const before = recorded.get(key)?.ratio.value;
        if (before === undefined || before <= 0) continue;
        const { value, low } = target.ratio;
        if (value > before * tolerated && low > before)
          found.push(`${key}: ${value.toFixed(3)}, recorded ${before.toFixed(3)}`);
      }
  return found;
}
