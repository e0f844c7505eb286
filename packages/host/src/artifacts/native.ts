// Compiles cloche-sys (native/sys), the host's small static program for kernel operations.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "../sys/run.ts";
import { compileFlags } from "./compile-flags.ts";
import { inStep, type Progress } from "./step.ts";
import { obtainArtifact } from "./store.ts";

const SOURCES_DIR = fileURLToPath(new URL("../../../../native/sys", import.meta.url));
const PROGRAM = "cloche-sys";

/** Answers the path of the program. */
export function obtainNative(cache: string, progress: Progress): Promise<string> {
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, "native program (cloche-sys)", repair, async (detail) => {
    const names = (await readdir(SOURCES_DIR)).filter((name) => /\.[ch]$/.test(name)).sort();
    const texts = await Promise.all(names.map((name) => readFile(join(SOURCES_DIR, name), "utf8")));
    const flags = [...(await compileFlags(SOURCES_DIR)), "-static"];
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "native",
        inputs: { names, texts, flags, architecture: process.arch },
        build: async (dir) => {
          const sources = names.filter((name) => name.endsWith(".c")).map((name) => join(SOURCES_DIR, name));
          await run(["gcc", ...flags, "-o", join(dir, PROGRAM), ...sources]);
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return join(artifact.path, PROGRAM);
  });
}
