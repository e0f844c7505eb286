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

/** The counts of a report. A file that could not even be loaded is one failure. */
export function countReport(text: string): Counts {
  const counts = noCounts();
  for (const file of (JSON.parse(text) as Report).testResults) {
    for (const { fullName, status, failureMessages } of file.assertionResults) {
      const name = `${file.name}: ${fullName}`;
      if (status === "passed") {
        counts.passed += 1;
        const [why] = failureMessages ?? [];
        if (why !== undefined) counts.repeats.push(`${name}: ${why.split("\n")[0] ?? ""}`);
      } else if (status === "failed") {
        counts.failed += 1;
        counts.failures.push(name);
      } else {
        counts.skipped += 1;
        counts.skips.push(name);
      }
    }
    const failedInside = file.assertionResults.some(({ status }) => status === "failed");
    if (file.status === "failed" && !failedInside) {
      counts.failed += 1;
      counts.failures.push(`${file.name}: ${(file.message ?? "could not be run").split("\n")[0] ?? ""}`);
    }
  }
  return counts;
}

/** The counts of a part that vitest ran: its report, and a failure more where it ended badly without naming one. */
export function countPart(reportPath: string, exitCode: number | undefined): Counts {
  let counts: Counts;
  try {
    counts = countReport(readFileSync(reportPath, "utf8"));
  } catch {
    return { ...noCounts(), failed: 1, failures: ["no report: it was ended or did not start"] };
  }
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
