// `npm test [-- part… [filter…]]`, `-- --changed [base]`, `-- --watch unit [filter…]`: runs the parts, two at a time, cleans the
// machine whatever happens, and ends with the one line `N passed, N failed` (`, N skipped`). Exits with 1 when anything failed,
// and in CI when anything was skipped.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { changedFiles, partsTouchedBy } from "./runner/changed.ts";
import { ensureDebianPackages } from "./fixtures/debian-packages.ts";
import { failed, Lane } from "./runner/lane.ts";
import { endAll } from "./runner/part-run.ts";
import { allPartsDeadlineMs, hasTests, type Part, parts } from "./runner/parts.ts";
import { add, type Counts, closingLine, noCounts } from "./runner/results.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
/** Many tests wait more than they compute. */
const LANES = 2;
const words = process.argv.slice(2);
const isPart = (word: string): boolean => parts.some(({ name }) => name === word);
const usage = `usage: npm test [-- part… [filter…]]
       npm test -- --changed [base]           the parts that the changed files can break
       npm test -- --watch unit [filter…]     unit tests again at every change
parts: ${parts.map(({ name }) => name).join(", ")}`;
if (words.some((word) => word === "--help" || word === "-h")) {
  console.log(usage);
  process.exit(0);
}
if (words[0] === "--watch") {
  if (words[1] !== "unit") exitWith(`--watch takes the part unit, not ${words[1] ?? "nothing"}\n${usage}`);
  const vitest = spawnSync(
    process.execPath,
    ["node_modules/vitest/vitest.mjs", "watch", "--project", ...words.slice(1)],
    { cwd: root, stdio: "inherit" },
  );
  process.exit(vitest.status ?? 1);
}
const unknownOption = words.find((word) => word.startsWith("-") && word !== "--changed");
if (unknownOption !== undefined) exitWith(`there is no option ${unknownOption}\n${usage}`);
const changed = words[0] === "--changed" ? touchedParts(words[1]) : undefined;
if (changed?.length === 0) {
  console.log("nothing has changed");
  process.exit(0);
}
const named = changed ?? words.filter(isPart);
const filters = changed ? [] : words.filter((word) => !isPart(word));

const isCi = process.env["CI"] === "true";
const startedAt = performance.now();
const wanted = parts.filter(isWanted);
const total = noCounts();
const durations: [string, string][] = [];
const queue = withPackages(wanted);
const lanes = Array.from(
  { length: Math.min(LANES, queue.length) },
  (_, index) => new Lane(index + 1, { root, filters, named: queue.length > 1 }),
);

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.once(signal, () => {
    endAll();
    for (const lane of lanes) lane.close();
    console.log(`ended by ${signal}`);
    process.exit(130);
  });
}

await Promise.all(lanes.map(runQueue));
report(total);

/** Each lane takes the next part that none has begun. */
async function runQueue(lane: Lane): Promise<void> {
  try {
    for (let part = queue.shift(); part !== undefined; part = queue.shift()) {
      const leftMs = allPartsDeadlineMs - (performance.now() - startedAt);
      const { counts, seconds } = await lane.run(part, Math.min(part.deadlineMs, leftMs));
      durations.push([part.name, `${seconds} s  ${closingLine(counts)}`]);
      add(total, counts);
    }
  } finally {
    lane.close();
  }
}

function isWanted(part: Part): boolean {
  if (named.length > 0) return named.includes(part.name);
  if (part.byNameOnly || !hasTests(part, root)) return false;
  const whyNot = part.whyNot?.();
  if (whyNot !== undefined) console.log(`\n==> ${part.name} is left out: ${whyNot}`);
  return whyNot === undefined;
}

/** Installs what the parts need; a part whose packages cannot be installed has failed. */
function withPackages(candidates: readonly Part[]): Part[] {
  return candidates.filter((part) => {
    try {
      ensureDebianPackages(part.packages ?? {});
      return true;
    } catch (error) {
      add(total, failed(part, (error as Error).message));
      return false;
    }
  });
}

function exitWith(words: string): never {
  console.error(words);
  process.exit(2);
}

function touchedParts(base: string | undefined): string[] {
  try {
    const names = parts.filter(({ byNameOnly }) => !byNameOnly).map(({ name }) => name);
    const touched = partsTouchedBy(changedFiles(root, base), names);
    console.log(`==> parts that the changed files can break: ${touched.join(", ") || "none"}`);
    return touched;
  } catch (error) {
    return exitWith(`--changed: ${(error as Error).message}`);
  }
}

function report(counts: Counts): void {
  console.log("");
  for (const [name, line] of durations) console.log(`${name.padEnd(10)} ${line}`);
  if (counts.failures.length > 0) console.log(`\nfailed:\n  ${counts.failures.join("\n  ")}`);
  if (counts.repeats.length > 0)
    console.log(`\npassed only when repeated:\n  ${counts.repeats.join("\n  ")}`);
  if (counts.skips.length > 0) console.log(`\nskipped:\n  ${counts.skips.join("\n  ")}`);
  if (isCi && counts.skipped > 0) console.log("\nCI allows no skips");
  process.exitCode = counts.failed > 0 || (isCi && counts.skipped > 0) ? 1 : 0;
  console.log(closingLine(counts));
}
