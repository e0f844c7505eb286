/**
 * `npm run bench:check`: the last run (bench/out/latest.json) against what bench/results records. A ratio more than 20 % above
 * the recorded one fails, where the recorded value also lies outside the new interval: noise alone is no regression.
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { type GroupRun, keyOf, recorded } from "./record.ts";
import { regressions } from "./regressions.ts";

const root = fileURLToPath(new URL("../", import.meta.url));
const { runs } = JSON.parse(readFileSync(`${root}bench/out/latest.json`, "utf8")) as { runs: GroupRun[] };
const known = recorded(root);
const found = regressions(runs, known);
const compared = runs.flatMap(({ group, results }) =>
  results.flatMap(({ targets }) => targets.filter((target) => known.has(keyOf(group, target)))),
);
console.log(`${compared.length} targets compared with bench/results, ${found.length} regressions`);
for (const line of found) console.log(`  ${line}`);
if (found.length > 0) process.exitCode = 1;
