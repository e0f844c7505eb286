import { execFile } from "node:child_process";
import { mkdir, readFile, rename, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
/** What is loaded before libc. */
const sources = { clock: sourceOf("clock.c") };
/** Of the very Node that runs here, which is the one that the sandboxes get. */
const nodeHeaders = join(dirname(process.execPath), "../include/node");

/** For whoever keys an artifact by what it is made of. */
export const addonSources = (): string[] => Object.values(sources);

/** Compiles one of the libraries that the agent's Node loads; needs gcc. Answers the size in bytes. */
export async function buildAddon(
  name: keyof typeof sources,
  outFile: string,
  compiler = "gcc",
): Promise<number> {
  await mkdir(dirname(outFile), { recursive: true });
  const unfinished = `${outFile}.${process.pid}.tmp`;
  const flags = (await readFile(sourceOf("compile_flags.txt"), "utf8")).trim().split("\n");
  await run(compiler, [...flags, "-shared", "-I", nodeHeaders, "-o", unfinished, sources[name]]);
  await rename(unfinished, outFile);
  return (await stat(outFile)).size;
}

function sourceOf(name: string): string {
  return fileURLToPath(new URL(`../../native/addon/${name}`, import.meta.url));
}
