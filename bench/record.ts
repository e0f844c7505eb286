/**
 * `--record`: one file a group in bench/results, the plots of docs/performance.md, and the last column of SPECIFICATION.md. A row
 * there names its target as "<group>: `<arm>` / `<against>`", its bound in the column before; nothing else of the table is touched.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { plotOf } from "./plot.ts";
import type { CellResult, TargetResult } from "./runner.ts";

export interface GroupRun {
  group: string;
  results: CellResult[];
}

export interface Circumstances {
  at: string;
  seed: number;
  /** CPUs, kernel, runtime: what a reader wants to know before believing. */
  machine: string;
}

export function record(root: string, runs: readonly GroupRun[], circumstances: Circumstances): void {
  const results = `${root}bench/results/`;
  const plots = `${root}docs/plots/`;
  for (const folder of [results, plots]) mkdirSync(folder, { recursive: true });
  for (const { group, results: cells } of runs) {
    const kept = cells.map(({ cell, arms, targets }) => ({
      cell,
      arms: arms.map((arm) => ({ ...arm, timesMs: undefined })),
      targets,
    }));
    writeFileSync(
      `${results}${group}.json`,
      `${JSON.stringify({ group, ...circumstances, results: kept }, null, 2)}\n`,
    );
    for (const cell of cells)
      if (cell.plot !== undefined) writeFileSync(`${plots}${cell.plot}.svg`, plotOf(cell, circumstances));
  }
  const specification = `${root}SPECIFICATION.md`;
  writeFileSync(specification, withLastPrinted(readFileSync(specification, "utf8"), runs));
}

/** What bench/results holds: targets by group, arm and against. */
export function recorded(root: string): Map<string, TargetResult> {
  const targets = new Map<string, TargetResult>();
  if (!existsSync(`${root}bench/results/`)) return targets;
  for (const name of readdirSync(`${root}bench/results/`).filter((one) => one.endsWith(".json"))) {
    const { group, results } = JSON.parse(readFileSync(`${root}bench/results/${name}`, "utf8")) as GroupRun;
    for (const { targets: own } of results)
      for (const target of own) targets.set(keyOf(group, target), target);
  }
  return targets;
}

/** One pair of arms may have several targets: the bound belongs to the name. */
export const keyOf = (
  group: string,
  { arm, against, atMost }: { arm: string; against: string; atMost: number },
): string => `${group}: \`${arm}\` / \`${against}\` ≤ ${atMost}`;

/** The table with the results of these runs in its last column. */
export function withLastPrinted(markdown: string, runs: readonly GroupRun[]): string {
  const printed = new Map<string, string>();
  for (const { group, results } of runs)
    for (const { targets } of results)
      for (const target of targets) printed.set(keyOf(group, target), brief(target));
  return markdown
    .split("\n")
    .map((line) => {
      const cells = line.split("|");
      const bound = /≤ ([\d.]+)/.exec(cells[2] ?? "")?.[1];
      const text = cells.length === 6 ? printed.get(`${(cells[3] ?? "").trim()} ≤ ${bound}`) : undefined;
      if (text === undefined) return line;
      cells[4] = ` ${text} `;
      return cells.join("|");
    })
    .join("\n");
}

function brief({ ratio: { value, low, high }, unit, met }: TargetResult): string {
  const verdict = met ? "met" : "missed";
  if (unit === "ms-more") return `${value.toFixed(2)} ms, ${verdict}`;
  return `${value.toFixed(3)}× [${low.toFixed(3)}, ${high.toFixed(3)}], ${verdict}`;
}
