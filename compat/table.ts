/** The table of docs/compatibility.md: a row for each suite, which a run of that suite replaces. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot } from "../tests/fixtures/service.ts";
import type { Suite, Verdict } from "./suite.ts";

const page = join(repositoryRoot, "docs/compatibility.md");
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
