/** Compiles the small native programs of the QEMU driver (native/vm). */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { compileFlags } from "../programs/compile-flags.ts";
import { obtainArtifact } from "../store/store.ts";

const sourcesDir = fileURLToPath(new URL("../../../../native/vm", import.meta.url));
const vmPrograms = [
  { source: "vm-launch.c", output: "vm-launch", flags: ["-static"] },
  { source: "vm-pages.c", output: "vm-pages", flags: ["-static"] },
  { source: "vm-clock.c", output: "vm-clock", flags: ["-static"] },
  { source: "open-read-only.c", output: "open-read-only.so", flags: ["-shared", "-fPIC"] },
] as const;

export interface VmTools {
  readonly key: string;
  /** Starts QEMU in its jail. */
  readonly launch: string;
  /** Copies a paused machine's changed memory. */
  readonly pages: string;
  /** For the guest: keeps its wall clock right. */
  readonly clock: string;
  /** Preloaded into QEMU before 9.0. */
  readonly openReadOnly: string;
}

export function obtainVmTools(cache: string, progress: Progress): Promise<VmTools> {
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, "native programs of virtual machines", repair, async () => {
    const texts = await Promise.all(
      vmPrograms.map(({ source }) => readFile(join(sourcesDir, source), "utf8")),
    );
    const common = await compileFlags(sourcesDir);
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "vm-tools",
        inputs: { programs: vmPrograms, texts, flags: common, architecture: process.arch },
        build: async (dir) => {
          for (const { source, output, flags } of vmPrograms)
            await run(["gcc", ...common, ...flags, "-o", join(dir, output), join(sourcesDir, source)]);
        },
      },
      progress,
    );
    return {
      key: artifact.key,
      launch: join(artifact.path, "vm-launch"),
      pages: join(artifact.path, "vm-pages"),
      clock: join(artifact.path, "vm-clock"),
      openReadOnly: join(artifact.path, "open-read-only.so"),
    };
  });
}
