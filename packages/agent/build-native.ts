import { execFile } from "node:child_process";
import { mkdir, readdir, readFile, rename, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const sourceDir = fileURLToPath(new URL("../../native/guest/", import.meta.url));
/** One a line; editors (clangd) and `npm run check` read them too. */
const flagsFile = `${sourceDir}compile_flags.txt`;

/** The C sources, for whoever keys an artifact by what it is made of. */
export async function nativeSources(): Promise<string[]> {
  const names = await readdir(sourceDir);
  return names
    .filter((name) => /\.[ch]$/.test(name))
    .sort()
    .map((name) => `${sourceDir}${name}`);
}

/**
 * Compiles the guest program (spawner, init, file server, tar) into one static executable; needs gcc and libc's static
 * library (Debian: gcc libc6-dev). The stack protector stays off: processes that share init's memory must not touch its
 * thread pointer. Answers the size in bytes.
 */
export async function buildNative(outFile: string, compiler = "gcc"): Promise<number> {
  const sources = (await nativeSources()).filter((path) => path.endsWith(".c"));
  await mkdir(dirname(outFile), { recursive: true });
  const unfinished = `${outFile}.${process.pid}.tmp`;
  const flags = (await readFile(flagsFile, "utf8")).trim().split("\n");
  await run(compiler, [...flags, "-static", "-o", unfinished, ...sources]);
  await rename(unfinished, outFile);
  return (await stat(outFile)).size;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const outFile = process.argv[2] ?? fileURLToPath(new URL("./dist/cloche-guest", import.meta.url));
  console.log(`${outFile}: ${await buildNative(outFile)} bytes`);
}
