// `npm run compat [suite...]`: runs upstream's own suites, unmodified, against a service and writes their rows of docs/compatibility.md.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { suites } from "./suites.ts";
import { takeSources } from "./sources.ts";
import { type CompatService, withService } from "./service.ts";
import { type CaseResult, judge, type Suite, withRepeats } from "./suite.ts";
import { writeRow } from "./table.ts";

const log = process.env["CLOCHE_COMPAT_LOG"];
/** Takes the results of the last run from its log and runs but what failed then. */
const onlyFailed = process.argv.includes("--failed");
if (onlyFailed && log === undefined)
  throw new Error("--failed needs CLOCHE_COMPAT_LOG, the folder of the last run's results");
const names = process.argv.slice(2).filter((word) => word !== "--failed");
const unknown = names.filter((name) => !suites.some((suite) => suite.name === name));
if (unknown.length > 0)
  throw new Error(`no suite ${unknown.join(", ")}; there is ${suites.map(({ name }) => name).join(", ")}`);
const chosen = suites.filter(({ name }) => names.length === 0 || names.includes(name));

const folder = mkdtempSync(join(tmpdir(), "cloche-compat-"));
try {
  await withService(folder, async (service) => {
    for (const suite of chosen) await runSuite(suite, service);
  });
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/** Tells each case that is not as expected; the exit code is 1 where there is one. */
async function runSuite(suite: Suite, service: CompatService): Promise<void> {
  const { name, repository, pin } = suite;
  console.log(`==> ${name} (${repository ?? "registry"} ${pin})`);
  const sources = join(folder, name);
  if (repository === undefined) mkdirSync(sources);
  else await takeSources(repository, pin, sources);
  await suite.install?.(sources);
  const first = onlyFailed
    ? (JSON.parse(readFileSync(join(log ?? "", `${name}.json`), "utf8")) as CaseResult[])
    : await suite.run(sources, service);
  const again = async (failed: readonly CaseResult[]) =>
    (await suite.again?.(sources, service, failed)) ?? [];
  const results = await withRepeats(suite, first, again);
  const verdict = judge(suite, results);
  writeRow(suite, verdict, new Date().toISOString().slice(0, 10));
  if (log !== undefined) writeFileSync(join(log, `${name}.json`), JSON.stringify(results, null, 1));
  for (const { id, message } of verdict.failed)
    console.log(`FAILED ${id}\n       ${message.split("\n", 3).join("\n       ")}`);
  for (const id of verdict.passedThoughOut) console.log(`passes, though on the list of what is out: ${id}`);
  const { passed, out, failed, skipped } = verdict;
  console.log(
    `${name}: ${passed.length} passed, ${out.length} out, ${failed.length} failed, ${skipped.length} skipped by itself`,
  );
  if (failed.length > 0 || passed.length === 0) process.exitCode = 1;
}
