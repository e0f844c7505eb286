// `npm test [-- part… [filter…]]`: runs the parts in order, cleans the machine whatever happens, and ends with the one line
// `N passed, N failed` (`, N skipped`). Exits with 1 when anything failed, and in CI when anything was skipped.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ensureDebianPackages } from "./runner/debian-packages.ts";
import { clearHome, clearHomes, leftLogs, openHomes } from "./runner/homes.ts";
import { endAll, runPart } from "./runner/part-run.ts";
import { allPartsDeadlineMs, hasTests, parts } from "./runner/parts.ts";
import { add, type Counts, closingLine, noCounts } from "./runner/results.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const words = process.argv.slice(2);
const named = words.filter((word) => parts.some(({ name }) => name === word));
const filters = words.filter((word) => !named.includes(word));
if (words.some((word) => word === "--help" || word === "-h")) {
  console.log(`usage: npm test [-- part… [filter…]]\nparts: ${parts.map(({ name }) => name).join(", ")}`);
  process.exit(0);
}

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
