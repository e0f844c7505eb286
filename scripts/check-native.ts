// `npm run check:native`: every C program compiles without a warning, by the flags of its folder, and is formatted as .clang-format
// says (`npm run format` does it).
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = fileURLToPath(new URL("..", import.meta.url));
const run = promisify(execFile);
const folders = readdirSync(join(root, "native")).map((name) => join("native", name));
const filesOf = (folder: string, ending: RegExp): string[] =>
  readdirSync(join(root, folder))
    .filter((name) => ending.test(name))
    .map((name) => join(folder, name));

/** What the compiler says; empty: nothing. */
async function compile(folder: string, source: string): Promise<string> {
  const flags = readFileSync(join(root, folder, "compile_flags.txt"), "utf8")
    .trim()
    .split("\n");
  return said("gcc", [...flags, "-Werror", "-c", "-o", "/dev/null", source]);
}

async function said(program: string, words: readonly string[]): Promise<string> {
  try {
    await run(program, words, { cwd: root });
    return "";
  } catch (error) {
    const { stdout = "", stderr = "", message } = error as Error & { stdout?: string; stderr?: string };
    return stdout + stderr || message;
  }
}

const jobs = folders.flatMap((folder) =>
  filesOf(folder, /\.c$/).map((source) => () => compile(folder, source)),
);
const sources = folders.flatMap((folder) => filesOf(folder, /\.[ch]$/));
const formatter = join(root, "node_modules/@wasm-fmt/clang-format/clang-format-cli.cjs");
jobs.unshift(() => said(process.execPath, [formatter, "--dry-run", "--Werror", ...sources]));

const problems: string[] = [];
const work = async (): Promise<void> => {
  for (let job = jobs.shift(); job !== undefined; job = jobs.shift()) problems.push(await job());
};
await Promise.all(Array.from({ length: availableParallelism() }, work));
const found = problems.filter((text) => text !== "");
for (const text of found) console.error(text.trimEnd());
if (found.length === 0) console.log(`Checked ${sources.length} C files.`);
process.exitCode = found.length === 0 ? 0 : 1;
