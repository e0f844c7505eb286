// Compiles the small native programs of the QEMU driver (machine/qemu/native).
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "../sys/run.ts";
import { inStep, type Progress } from "./step.ts";
import { obtainArtifact } from "./store.ts";

const SOURCES_DIR = fileURLToPath(new URL("../machine/qemu/native", import.meta.url));
const FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra"];
const PROGRAMS = [
  { source: "vm-launch.c", output: "vm-launch", flags: ["-static"] },
  { source: "vm-pages.c", output: "vm-pages", flags: ["-static"] },
  { source: "open-read-only.c", output: "open-read-only.so", flags: ["-shared", "-fPIC"] },
] as const;

export interface VmTools {
  /** Puts QEMU into its jail. */
  readonly launch: string;
  /** Copies a paused machine's changed memory. */
  readonly pages: string;
  /** Preloaded into a QEMU before 9.0. */
  readonly openReadOnly: string;
}

export function obtainVmTools(cache: string, progress: Progress): Promise<VmTools> {
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, "native programs of virtual machines", repair, async () => {
    const texts = await Promise.all(
      PROGRAMS.map(({ source }) => readFile(join(SOURCES_DIR, source), "utf8")),
    );
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "vm-tools",
        inputs: { programs: PROGRAMS, texts, flags: FLAGS, architecture: process.arch },
        build: async (dir) => {
          for (const { source, output, flags } of PROGRAMS)
            await run(["gcc", ...FLAGS, ...flags, "-o", join(dir, output), join(SOURCES_DIR, source)]);
        },
      },
      progress,
    );
    return {
      launch: join(artifact.path, "vm-launch"),
      pages: join(artifact.path, "vm-pages"),
      openReadOnly: join(artifact.path, "open-read-only.so"),
    };
  });
}
