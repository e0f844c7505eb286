// Runs one part in a process group of its own, so that a part that hangs can be ended whole.
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import type { Part } from "./parts.ts";
import { type Counts, countPart, noCounts } from "./results.ts";

export interface Ran {
  /** Undefined: ended on its deadline. */
  exitCode: number | undefined;
}

const children = new Set<ChildProcess>();

/** Ends what runs now: for signals. */
export function endAll(): void {
  for (const child of children) endGroup(child);
}

/** The counts of one part. `filters` are passed to vitest: parts of file names. */
export async function runPart(
  part: Part,
  options: {
    root: string;
    reports: string;
    filters: readonly string[];
    deadlineMs: number;
    env: NodeJS.ProcessEnv;
  },
): Promise<Counts> {
  const { root, env, deadlineMs } = options;
  if (part.scripts) return await runScripts(part.scripts, root, deadlineMs, env);
  const report = join(options.reports, `${part.name}.json`);
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
    ...options.filters,
  ];
  const { exitCode } = await run(process.execPath, words, { cwd: root, env, deadlineMs });
  return countPart(report, exitCode);
}

async function runScripts(
  scripts: readonly string[],
  root: string,
  deadlineMs: number,
  env: NodeJS.ProcessEnv,
): Promise<Counts> {
  const counts = noCounts();
  for (const script of scripts) {
    const { exitCode } = await run("npm", ["run", "--silent", script], { cwd: root, env, deadlineMs });
    if (exitCode === 0) counts.passed += 1;
    else {
      counts.failed += 1;
      counts.failures.push(`npm run ${script}${exitCode === undefined ? " ran past its deadline" : ""}`);
    }
  }
  return counts;
}

function run(
  program: string,
  words: readonly string[],
  options: { cwd: string; env: NodeJS.ProcessEnv; deadlineMs: number },
): Promise<Ran> {
  const { promise, resolve } = Promise.withResolvers<Ran>();
  const child = spawn(program, words, {
    cwd: options.cwd,
    env: options.env,
    detached: true,
    stdio: ["ignore", "inherit", "inherit"],
  });
  children.add(child);
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    console.log(`==> not done after ${Math.round(options.deadlineMs / 1_000)} s: ended`);
    endGroup(child);
  }, options.deadlineMs);
  const done = (code: number): void => {
    clearTimeout(timer);
    children.delete(child);
    resolve({ exitCode: late ? undefined : code });
  };
  child.once("error", () => done(127));
  child.once("exit", (code, signal) => done(code ?? (signal ? 128 : 1)));
  return promise;
}

function endGroup(child: ChildProcess): void {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    // It has ended by itself.
  }
}
