import { describe, expect, test } from "vitest";
import { parts } from "./parts.ts";
import { add, type Counts, closingLine, countFiles, countPart, noCounts, readReport } from "./results.ts";

const report = (
  assertions: { fullName: string; status: string; failureMessages?: string[] }[],
  status = "passed",
  message = "",
): string =>
  JSON.stringify({ testResults: [{ name: "a.test.ts", status, message, assertionResults: assertions }] });

const countReport = (text: string): Counts => countPart(countFiles(text), 0);

describe("the closing line", () => {
  test("counts what passed, failed and was skipped", () => {
    const counts = countReport(
      report(
        [
          { fullName: "one", status: "passed" },
          { fullName: "two", status: "failed" },
          { fullName: "three", status: "pending" },
          { fullName: "four", status: "todo" },
        ],
        "failed",
      ),
    );
    expect(closingLine(counts)).toBe("1 passed, 1 failed, 2 skipped");
    expect(counts.failures).toEqual(["a.test.ts: two: failed"]);
  });

  test("is silent of skips when there are none", () => {
    expect(closingLine(countReport(report([{ fullName: "one", status: "passed" }])))).toBe(
      "1 passed, 0 failed",
    );
  });

  test("names what passed only when it was repeated", () => {
    const flaky = { fullName: "one", status: "passed", failureMessages: ["Error: late\n at y"] };
    const counts = countReport(report([flaky, { fullName: "two", status: "passed", failureMessages: [] }]));
    expect(closingLine(counts)).toBe("2 passed, 0 failed");
    expect(counts.repeats).toEqual(["a.test.ts: one: Error: late"]);
  });

  test("counts a file that could not be loaded", () => {
    const counts = countReport(report([], "failed", "SyntaxError: x\n at y"));
    expect(closingLine(counts)).toBe("0 passed, 1 failed");
    expect(counts.failures).toEqual(["a.test.ts: SyntaxError: x"]);
  });

  test("counts a part that left no report", () => {
    const files = readReport("/no/such/report.json");
    expect(closingLine(countPart(files, undefined))).toBe("0 passed, 1 failed");
  });

  test("adds parts up", () => {
    const total = noCounts();
    add(total, { ...noCounts(), passed: 2 });
    add(total, { ...noCounts(), passed: 1, failed: 3, skipped: 1 });
    expect(closingLine(total)).toBe("3 passed, 3 failed, 1 skipped");
  });
});

test("every part is bounded, and named once", () => {
  expect(new Set(parts.map(({ name }) => name)).size).toBe(parts.length);
  const always = parts.filter(({ byNameOnly }) => byNameOnly !== true);
  expect(always.every(({ deadlineMs }) => deadlineMs > 0 && deadlineMs <= 40 * 60_000)).toBe(true);
});
