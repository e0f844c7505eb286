// Runs one part in a process group of its own, so that a part that hangs can be ended whole.
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import type { Part } from "./parts.ts";
import { add, type Counts, countPart, type FileCounts, noCounts, readReport } from "./results.ts";

export interface Ran {
  /** Undefined: ended on its deadline. */
  exitCode: number | undefined;
}

const children = new Set<ChildProcess>();
const LAST_LINES_MS = 2_000;

/** Ends what runs now: for signals. */
export function endAll(): void {
  for (const child of children) endGroup(child);
}

interface RunOptions {
  root: string;
  reports: string;
  filters: readonly string[];
  deadlineMs: number;
  env: NodeJS.ProcessEnv;
  /** Takes each line of output; undefined: it goes to the terminal as it is. */
  print?: ((line: string) => void) | undefined;
  /** Removes what a run left on the machine, and names it. */
  clear(): string[];
}

/**
 * The counts of one part. `filters` are passed to vitest: parts of file names. Files with a failure are run once more, in a
 * process and with a service of their own: what passes then counts as passed and is named at the end of the run.
 */
export async function runPart(part: Part, options: RunOptions): Promise<Counts> {
  const { deadlineMs } = options;
  if (part.scripts) return await runScripts(part.scripts, options);
  const startedAt = performance.now();
  const first = await runVitest(part.name, part, options);
  const counts = countPart(first.files, first.exitCode);
  if (counts.failed === 0 || first.exitCode === undefined) return counts;

  const failed = (first.files ?? []).filter((file) => file.counts.failed > 0);
  console.log(`==> ${part.name}: ${counts.failed} failed, once more:\n    ${counts.failures.join("\n    ")}`);
  const left = options.clear();
  const second = await runVitest(`${part.name}-again`, part, {
    ...options,
    // Without a file to blame, the whole part.
    filters: failed.length > 0 ? failed.map(({ file }) => file) : options.filters,
    deadlineMs: deadlineMs - (performance.now() - startedAt),
  });
  const again = countPart(second.files, second.exitCode);
  const total = noCounts();
  if (failed.length > 0)
    for (const file of first.files ?? []) if (file.counts.failed === 0) add(total, file.counts);
  add(total, again);
  total.repeats.push(...counts.failures, ...left.map((line) => `left on the machine: ${line}`));
  return total;
}

async function runVitest(
  reportName: string,
  part: Part,
  { root, reports, filters, deadlineMs, env, print }: RunOptions,
): Promise<{ files: FileCounts[] | undefined; exitCode: number | undefined }> {
  const report = join(reports, `${reportName}.json`);
  const words = [
    join(root, "node_modules/vitest/vitest.mjs"),
    "run",
    "--project",
    part.name,
    // Tests on the machine take seconds each: a line for every one shows that it goes on.
    `--reporter=${part.folder === undefined ? "default" : "verbose"}`,
    "--reporter=json",
    // Once: a test that needs it is named at the end of the run.
    "--retry=1",
    `--outputFile.json=${report}`,
    ...filters,
  ];
  const { exitCode } = await run(process.execPath, words, { cwd: root, env, deadlineMs, print });
  return { files: readReport(report), exitCode };
}

async function runScripts(
  scripts: readonly string[],
  { root, deadlineMs, env, print }: RunOptions,
): Promise<Counts> {
  const counts = noCounts();
  for (const script of scripts) {
    const { exitCode } = await run("npm", ["run", "--silent", script], { cwd: root, env, deadlineMs, print });
    if (exitCode === 0) counts.passed += 1;
    else {
      counts.failed += 1;
      counts.failures.push(`npm run ${script}${exitCode === undefined ? " ran past its deadline" : ""}`);
    }
  }
  return counts;
}

async function run(
  program: string,
  words: readonly string[],
  { cwd, env, deadlineMs, print }: { cwd: string } & Pick<RunOptions, "env" | "deadlineMs" | "print">,
): Promise<Ran> {
  const { promise, resolve } = Promise.withResolvers<Ran>();
  const output = print ? "pipe" : "inherit";
  const child = spawn(program, words, { cwd, env, detached: true, stdio: ["ignore", output, output] });
  children.add(child);
  const printed = print ? [child.stdout, child.stderr].map((stream) => printLines(stream, print)) : [];
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    console.log(`==> not done after ${Math.round(deadlineMs / 1_000)} s: ended`);
    endGroup(child);
  }, deadlineMs);
  const done = (code: number): void => {
    clearTimeout(timer);
    children.delete(child);
    resolve({ exitCode: late ? undefined : code });
  };
  child.once("error", () => done(127));
  child.once("exit", (code, signal) => done(code ?? (signal ? 128 : 1)));
  const ran = await promise;
  // A process that a test left behind may hold the pipes open.
  await Promise.race([Promise.all(printed), sleep(LAST_LINES_MS)]);
  return ran;
}

async function printLines(stream: Readable | null, print: (line: string) => void): Promise<void> {
  if (stream) for await (const line of createInterface({ input: stream })) print(line);
}

function endGroup(child: ChildProcess): void {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    // It has ended by itself.
  }
}
