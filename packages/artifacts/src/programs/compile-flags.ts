/**
 * Reads the compiler's flags of a folder of C programs, one a line in its compile_flags.txt, which editors (clangd) and
 * `npm run check` read too.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";

export async function compileFlags(folder: string): Promise<string[]> {
  return (await readFile(join(folder, "compile_flags.txt"), "utf8")).trim().split("\n");
}
