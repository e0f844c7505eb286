/**
 * The table of docs/compatibility.md: a row for each suite, which a run of that suite replaces; and its short form in the README.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import type { Suite, Verdict } from "./suite.ts";

const page = join(repositoryRoot, "docs/compatibility.md");
const readme = join(repositoryRoot, "README.md");
const [begin, end] = ["<!-- rows -->\n", "<!-- end of rows -->"];
const head =
  "| suite | part | commit | passed | out | failed | date |\n| --- | --- | --- | --: | --: | --: | --- |\n";

export function writeRow(suite: Suite, verdict: Verdict, date: string): void {
  const text = readFileSync(page, "utf8");
  const [before = "", rest = ""] = text.split(begin);
  const [table = "", after = ""] = rest.split(end);
  const rows = new Map(
    table
      .split("\n")
      .filter((line) => line.startsWith("| ["))
      .map((line) => [/\| \[([^\]]+)\]/.exec(line)?.[1] ?? line, line]),
  );
  rows.set(suite.name, rowOf(suite, verdict, date));
  const sorted = [...rows.keys()].sort().map((name) => `${rows.get(name)}\n`);
  writeFileSync(page, `${before}${begin}\n${head}${sorted.join("")}\n${end}${after}`);
  writeFileSync(readme, withSummary(readFileSync(readme, "utf8"), readFileSync(page, "utf8")));
}

/** Frameworks as the README names them, and the suites of each. */
const frameworks: readonly [string, readonly string[]][] = [
  ["E2B, JavaScript", ["e2b-javascript"]],
  ["E2B, Python", ["e2b-python"]],
  ["LangChain Deep Agents, JavaScript", ["langchain-deepagents-js"]],
  ["LangChain Deep Agents, Python", ["langchain-deepagents"]],
  ["Mastra", ["mastra-workspace"]],
  ["ComputeSDK, and its provider for E2B", ["computesdk", "computesdk-e2b"]],
  ["Inspect AI", ["inspect-ai"]],
  ["SWE-ReX", ["swe-rex"]],
  ["mini-swe-agent", ["mini-swe-agent"]],
];
const shortHead = "| framework | passed | out | failed |\n| --- | --: | --: | --: |\n";

/** The README with the numbers that the page has. */
export function withSummary(text: string, compatibility: string): string {
  const counts = (suite: string): number[] => {
    const row = compatibility.split("\n").find((line) => line.startsWith(`| [${suite}](`));
    if (row === undefined) throw new Error(`docs/compatibility.md has no row of ${suite}`);
    return row.split(" | ").slice(3, 6).map(Number);
  };
  const rows = frameworks.map(([name, suites]) => {
    const all = suites.map(counts);
    const sums = [0, 1, 2].map((column) => all.reduce((sum, row) => sum + (row[column] ?? 0), 0));
    return `| ${[name, ...sums].join(" | ")} |\n`;
  });
  return text.replace(
    /(<!-- compatibility -->\n\n)[^]*?(\n<!-- end of compatibility -->)/,
    (_, before: string, after: string) => `${before}${shortHead}${rows.join("")}${after}`,
  );
}

function rowOf({ name, part, pin }: Suite, { passed, out, failed }: Verdict, date: string): string {
  const commit = /^[0-9a-f]{40}$/.test(pin) ? pin.slice(0, 10) : pin;
  const cells = [
    `[${name}](../compat/${name}.ts)`,
    part,
    commit,
    passed.length,
    out.length,
    failed.length,
    date,
  ];
  return `| ${cells.join(" | ")} |`;
}
