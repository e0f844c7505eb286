// Counts of a test run, read from vitest's JSON report.
import { readFileSync } from "node:fs";

export interface Counts {
  passed: number;
  failed: number;
  skipped: number;
  /** What failed and what was skipped, by full name. */
  failures: string[];
  skips: string[];
  /** Passed only when it was repeated: a flake, told loudly, for the machines are shared and noisy. */
  repeats: string[];
}

interface Report {
  testResults: {
    name: string;
    status: string;
    message?: string;
    assertionResults: { fullName: string; status: string; failureMessages?: string[] | null }[];
  }[];
}

export const noCounts = (): Counts => ({
  passed: 0,
  failed: 0,
  skipped: 0,
  failures: [],
  skips: [],
  repeats: [],
});

/** The counts of one test file. One that could not even be loaded is one failure. */
export interface FileCounts {
  readonly file: string;
  readonly counts: Counts;
}

/** What a report says of each file. */
export function countFiles(text: string): FileCounts[] {
  return (JSON.parse(text) as Report).testResults.map((result) => {
    const counts = noCounts();
    for (const { fullName, status, failureMessages } of result.assertionResults) {
      const name = `${result.name}: ${fullName}`;
      if (status === "passed") {
        counts.passed += 1;
        const [why] = failureMessages ?? [];
        if (why !== undefined) counts.repeats.push(`${name}: ${why.split("\n")[0] ?? ""}`);
      } else if (status === "failed") {
        counts.failed += 1;
        counts.failures.push(`${name}: ${failureMessages?.[0]?.split("\n")[0] ?? "failed"}`);
      } else {
        counts.skipped += 1;
        counts.skips.push(name);
      }
    }
    if (result.status === "failed" && counts.failed === 0) {
      counts.failed = 1;
      counts.failures.push(`${result.name}: ${(result.message ?? "could not be run").split("\n")[0] ?? ""}`);
    }
    return { file: result.name, counts };
  });
}

/** The files of a part that vitest ran, from its report; undefined when it left none. */
export function readReport(path: string): FileCounts[] | undefined {
  try {
    return countFiles(readFileSync(path, "utf8"));
  } catch {
    return undefined;
  }
}

/** All files together, and a failure more where the run ended badly without naming one. */
export function countPart(files: readonly FileCounts[] | undefined, exitCode: number | undefined): Counts {
  if (files === undefined)
    return { ...noCounts(), failed: 1, failures: ["no report: it was ended or did not start"] };
  const counts = noCounts();
  for (const file of files) add(counts, file.counts);
  if (exitCode !== 0 && counts.failed === 0) {
    counts.failed = 1;
    counts.failures.push(
      exitCode === undefined ? "ran past its deadline" : `ended with exit code ${exitCode}`,
    );
  }
  return counts;
}

export function add(total: Counts, more: Counts): void {
  total.passed += more.passed;
  total.failed += more.failed;
  total.skipped += more.skipped;
  total.failures.push(...more.failures);
  total.skips.push(...more.skips);
  total.repeats.push(...more.repeats);
}

/** `N passed, N failed`, and `, N skipped` when there are any. */
export const closingLine = ({ passed, failed, skipped }: Counts): string =>
  `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`;
