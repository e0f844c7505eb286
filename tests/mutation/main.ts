// `npm run mutate-defences [-- --all] [-- words of a defence]`: switches each defence off in a copy of the checkout and runs the test
// that is said to attack it, which must fail; with the defence on, it must pass. Without --all: those that need no sandbox.
import { execFileSync, spawnSync } from "node:child_process";
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Defence } from "./defence.ts";
import { defences } from "./defences.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const words = process.argv.slice(2).filter((word) => word !== "--all");
const all = process.argv.includes("--all");
const chosen = defences.filter(
  ({ what, heavy }) =>
    (all || heavy === undefined || words.length > 0) && words.every((word) => what.includes(word)),
);
const RUN_MS = 10 * 60_000;

/** The checkout as it lies here, with packages of its own, so that what is switched off is what the test imports. */
function copyCheckout(): string {
  const copy = mkdtempSync(join(tmpdir(), "cloche-mutation-"));
  const names = execFileSync("git", ["ls-files", "-co", "--exclude-standard", "-z"], {
    cwd: root,
    encoding: "utf8",
  });
  for (const name of names.split("\0").filter(Boolean)) {
    mkdirSync(dirname(join(copy, name)), { recursive: true });
    cpSync(join(root, name), join(copy, name));
  }
  const modules = join(copy, "node_modules");
  mkdirSync(join(modules, "@cloche"), { recursive: true });
  for (const name of readdirSync(join(root, "node_modules")))
    if (name !== "@cloche") symlinkSync(join(root, "node_modules", name), join(modules, name));
  for (const name of readdirSync(join(copy, "packages")))
    symlinkSync(join(copy, "packages", name), join(modules, "@cloche", name));
  return copy;
}

/** The run that a defence's test is: the same for many. */
type Run = Pick<Defence, "project" | "test" | "named">;

function passes(copy: string, { project, test, named }: Run): boolean {
  const filter = named === undefined ? [] : ["-t", named];
  const { status, stdout } = spawnSync(
    process.execPath,
    [
      join(root, "node_modules/vitest/vitest.mjs"),
      "run",
      "--project",
      project,
      test,
      ...filter,
      "--no-color",
    ],
    { cwd: copy, encoding: "utf8", timeout: RUN_MS, maxBuffer: 256 * 1024 * 1024 },
  );
  // Nothing that ran is nothing that was shown.
  if (!/Tests\s.*\d+ (passed|failed)/.test(stdout))
    throw new Error(`${test} ran no test:\n${stdout.slice(-2_000)}`);
  return status === 0;
}

const copy = copyCheckout();
const undefended: string[] = [];
/** What passes with every defence on, by the run: many defences have one test, and the checkout does not change. */
const defended = new Map<string, boolean>();

function passesDefended(run: Run): boolean {
  const key = JSON.stringify([run.project, run.test, run.named]);
  const known = defended.get(key) ?? passes(copy, run);
  defended.set(key, known);
  return known;
}

/** What the test of a defence shows: `shown`, or why it does not. */
function tryDefence(defence: Defence): { shown: boolean; how: string } {
  const path = join(copy, defence.file);
  const source = readFileSync(path, "utf8");
  if (source.split(defence.find).length !== 2)
    throw new Error(`${defence.file} must have ${JSON.stringify(defence.find)} exactly once`);
  if (!passesDefended(defence)) return { shown: false, how: "fails with it" };
  writeFileSync(
    path,
    source.replace(defence.find, () => defence.replace),
  );
  try {
    return passes(copy, defence)
      ? { shown: false, how: "passes without it" }
      : { shown: true, how: "fails without it" };
  } finally {
    writeFileSync(path, source);
  }
}

try {
  for (const defence of chosen) {
    let result: { shown: boolean; how: string };
    try {
      result = tryDefence(defence);
    } catch (error) {
      result = { shown: false, how: `could not be tried: ${(error as Error).message}` };
    }
    if (!result.shown) undefended.push(defence.what);
    console.log(`${result.shown ? "ok  " : "FAIL"} ${defence.what}: ${defence.test} ${result.how}`);
  }
} finally {
  rmSync(copy, { recursive: true, force: true });
}
console.log(`${chosen.length - undefended.length} passed, ${undefended.length} failed`);
process.exitCode = undefended.length > 0 ? 1 : 0;
