// `npm test [-- part… [filter…]]`, `-- --changed [base]`, `-- --watch unit [filter…]`: runs the parts in order, cleans the machine whatever happens, and ends with the one line
// `N passed, N failed` (`, N skipped`). Exits with 1 when anything failed, and in CI when anything was skipped.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { changedFiles, partsTouchedBy } from "./runner/changed.ts";
import { ensureDebianPackages } from "./runner/debian-packages.ts";
import { clearHome, clearHomes, leftLogs, openHomes } from "./runner/homes.ts";
import { endAll, runPart } from "./runner/part-run.ts";
import { allPartsDeadlineMs, hasTests, parts } from "./runner/parts.ts";
import { add, type Counts, closingLine, noCounts } from "./runner/results.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
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
const homes = openHomes();
const outName = "out";
const out = join(homes, outName);
const logs = join(out, "logs");
mkdirSync(logs, { recursive: true });
const env: NodeJS.ProcessEnv = {
  ...process.env,
  CLOCHE_TEST_HOMES: homes,
  CLOCHE_TEST_LOG: logs,
  CLOCHE_CACHE: process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache",
};

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.once(signal, () => {
    endAll();
    clearHomes(homes);
    console.log(`ended by ${signal}`);
    process.exit(130);
  });
}

const total = noCounts();
const durations: [string, string][] = [];
const startedAt = performance.now();
try {
  for (const part of parts) {
    const wanted = named.length > 0 ? named.includes(part.name) : !part.byNameOnly && hasTests(part, root);
    if (!wanted) continue;
    const whyNot = part.whyNot?.();
    if (whyNot !== undefined && !named.includes(part.name)) {
      console.log(`\n==> ${part.name} is left out: ${whyNot}`);
      continue;
    }
    const left = allPartsDeadlineMs - (performance.now() - startedAt);
    console.log(`\n==> ${part.name}`);
    const partStartedAt = performance.now();
    const counts = await countsOf(part, Math.min(part.deadlineMs, left));
    const seconds = ((performance.now() - partStartedAt) / 1_000).toFixed(1);
    durations.push([part.name, `${seconds} s  ${closingLine(counts)}`]);
    console.log(`==> ${part.name}: ${closingLine(counts)} in ${seconds} s`);
    if (counts.failed > 0) printLogs();
    rmSync(logs, { recursive: true, force: true });
    mkdirSync(logs, { recursive: true });
    const leaks = clearPart();
    if (leaks.length > 0) {
      counts.failed += 1;
      counts.failures.push(`${part.name} left on the machine:\n    ${leaks.join("\n    ")}`);
    }
    add(total, counts);
  }
} finally {
  clearHomes(homes);
}
report(total);

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

async function countsOf(part: (typeof parts)[number], deadlineMs: number): Promise<Counts> {
  if (deadlineMs <= 0)
    return { ...noCounts(), failed: 1, failures: [`${part.name}: no time was left for it`] };
  try {
    const whyNot = part.whyNot?.();
    if (whyNot !== undefined) throw new Error(whyNot);
    ensureDebianPackages(part.packages ?? {});
    return await runPart(part, { root, reports: out, filters, deadlineMs, env, clear: clearPart });
  } catch (error) {
    return { ...noCounts(), failed: 1, failures: [`${part.name}: ${(error as Error).message}`] };
  }
}

/** Homes that a part did not destroy itself, and what their services still had on the machine. */
function clearPart(): string[] {
  return readdirSync(homes)
    .filter((name) => name !== outName)
    .flatMap((name) => clearHome(join(homes, name)));
}

function printLogs(): void {
  for (const name of readdirSync(logs)) console.log(`--- ${name}\n${readFileSync(join(logs, name), "utf8")}`);
  const left = leftLogs(homes);
  if (left !== "") console.log(left);
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
