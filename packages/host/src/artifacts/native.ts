// Compiles the host's small static programs: cloche-sys (native/sys) for kernel operations, and the guard of a cluster's lease (native/guard).
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "../sys/run.ts";
import { compileFlags } from "./compile-flags.ts";
import { inStep, type Progress } from "./step.ts";
import { obtainArtifact } from "./store.ts";

const SOURCES_DIR = fileURLToPath(new URL("../../../../native", import.meta.url));

/** Answers the path of cloche-sys. */
export const obtainNative = (cache: string, progress: Progress): Promise<string> =>
  obtainProgram(cache, progress, { kind: "native", folder: "sys", program: "cloche-sys" });

/** Answers the path of the guard. */
export const obtainGuard = (cache: string, progress: Progress): Promise<string> =>
  obtainProgram(cache, progress, { kind: "guard", folder: "guard", program: "cloche-guard" });

function obtainProgram(
  cache: string,
  progress: Progress,
  { kind, folder, program }: { kind: string; folder: string; program: string },
): Promise<string> {
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, `native program (${program})`, repair, async (detail) => {
    const sourcesDir = join(SOURCES_DIR, folder);
    const names = (await readdir(sourcesDir)).filter((name) => /\.[ch]$/.test(name)).sort();
    const texts = await Promise.all(names.map((name) => readFile(join(sourcesDir, name), "utf8")));
    const flags = [...(await compileFlags(sourcesDir)), "-static"];
    const artifact = await obtainArtifact(
      cache,
      {
        kind,
        inputs: { names, texts, flags, architecture: process.arch },
        build: async (dir) => {
          const sources = names.filter((name) => name.endsWith(".c")).map((name) => join(sourcesDir, name));
          await run(["gcc", ...flags, "-o", join(dir, program), ...sources]);
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return join(artifact.path, program);
  });
}
