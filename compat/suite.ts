/** What one upstream suite is: where it comes from, the part that runs, the wiring, and the cases that are out. */
import type { CompatService } from "./service.ts";

export interface Suite {
  /** As the command line and the table name it. */
  name: string;
  /** Of GitHub: `owner/name`; or a package of a registry. */
  repository?: string;
  /** The commit that runs; of a package its name and version. */
  pin: string;
  /** The part of the suite that runs, for the table. */
  part: string;
  /**
   * Cases that are not expected to pass, by the reason. A case is meant by the end of its id, `file > names`; with `…` at the
   * end by any part of it. One that passes all the same is reported, so that the list stays true.
   */
  out: Readonly<Record<string, readonly string[]>>;
  /** Installs what the suite needs. `folder`: a copy of the sources, thrown away afterwards. Absent: `run` does it. */
  install?(folder: string): Promise<void>;
  /** Runs it, unmodified. */
  run(folder: string, service: CompatService): Promise<CaseResult[]>;
  /** Runs some cases once more. Absent: what fails stays so. */
  again?(folder: string, service: CompatService, cases: readonly CaseResult[]): Promise<CaseResult[]>;
}

export interface CaseResult {
  id: string;
  /** `skipped`: the suite itself decided so. */
  result: "passed" | "failed" | "skipped";
  message: string;
}

export interface Verdict {
  passed: string[];
  out: string[];
  failed: CaseResult[];
  skipped: string[];
  /** On the list, and passed. */
  passedThoughOut: string[];
}

export function judge(suite: Pick<Suite, "out">, results: readonly CaseResult[]): Verdict {
  const listed = Object.values(suite.out).flat();
  const isOut = ({ id }: CaseResult): boolean =>
    listed.some((part) => (part.endsWith("…") ? id.includes(part.slice(0, -1)) : id.endsWith(part)));
  const ids = (kept: (one: CaseResult) => boolean): string[] => results.filter(kept).map(({ id }) => id);
  return {
    passed: ids(({ result }) => result === "passed"),
    out: ids((one) => one.result === "failed" && isOut(one)),
    failed: results.filter((one) => one.result === "failed" && !isOut(one)),
    skipped: ids(({ result }) => result === "skipped"),
    passedThoughOut: ids((one) => one.result === "passed" && isOut(one)),
  };
}

/** What is known of each case after those that failed, though they are not out, have run once more. Tells which passed only then. */
export async function withRepeats(
  suite: Pick<Suite, "name" | "out" | "again">,
  results: readonly CaseResult[],
  again: (failed: readonly CaseResult[]) => Promise<CaseResult[]>,
): Promise<CaseResult[]> {
  const { failed } = judge(suite, results);
  if (failed.length === 0 || suite.again === undefined) return [...results];
  const ids = new Set(failed.map(({ id }) => id));
  const repeated = (await again(failed)).filter(({ id, result }) => ids.has(id) && result !== "skipped");
  const found = new Map(repeated.map((one) => [one.id, one]));
  for (const { id, result } of repeated)
    if (result === "passed") console.log(`passed only when repeated: ${id}`);
  const seen = new Set<string>();
  return results
    .map((one) => found.get(one.id) ?? one)
    .filter(({ id }) => !(ids.has(id) && found.has(id)) || (!seen.has(id) && seen.add(id)));
}
