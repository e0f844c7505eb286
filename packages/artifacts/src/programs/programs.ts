/** Compiles the host's small static programs from the repository's `native` folder. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { obtainArtifact } from "../store/store.ts";
import { compileFlags } from "./compile-flags.ts";

const sourcesDir = fileURLToPath(new URL("../../../../native", import.meta.url));

/** A program and the folder of its sources. */
interface Program {
  readonly name: string;
  readonly folder: string;
}

/** Answers the path of cloche-sys, which does kernel operations for the host. */
export const obtainNative = (cache: string, progress: Progress): Promise<string> =>
  obtainPrograms(cache, progress, "native", [{ name: "cloche-sys", folder: "sys" }]);

/** Answers the path of the guard of a cluster's lease. */
export const obtainGuard = (cache: string, progress: Progress): Promise<string> =>
  obtainPrograms(cache, progress, "guard", [{ name: "cloche-guard", folder: "guard" }]);

/** Answers the path of the keeper, the parent of gVisor's processes. `runsc-probe` lies beside it. */
export const obtainKeeper = (cache: string, progress: Progress): Promise<string> =>
  obtainPrograms(cache, progress, "keeper", [
    { name: "keeper", folder: "keeper" },
    { name: "runsc-probe", folder: "gvisor" },
  ]);

/** Answers the path of the first of `programs`; the others lie beside it. */
function obtainPrograms(
  cache: string,
  progress: Progress,
  kind: string,
  programs: readonly [Program, ...Program[]],
): Promise<string> {
  const [first] = programs;
  const repair = "apt-get install -y gcc libc6-dev, and run the command again";
  return inStep(progress, `native program (${first.name})`, repair, async (detail) => {
    const parts = await Promise.all(
      programs.map(async ({ name, folder }) => ({ name, ...(await sourcesOf(join(sourcesDir, folder))) })),
    );
    const artifact = await obtainArtifact(
      cache,
      {
        kind,
        inputs: {
          names: parts.flatMap(({ files }) => files.map(({ name }) => name)),
          texts: parts.flatMap(({ files }) => files.map(({ text }) => text)),
          flags: parts.flatMap(({ flags }) => flags),
          architecture: process.arch,
        },
        build: async (dir) => {
          for (const { name, files, flags } of parts) {
            const sources = files.map(({ path }) => path).filter((path) => path.endsWith(".c"));
            await run(["gcc", ...flags, "-o", join(dir, name), ...sources]);
          }
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return join(artifact.path, first.name);
  });
}

async function sourcesOf(folder: string) {
  const names = (await readdir(folder)).filter((name) => /\.[ch]$/.test(name)).sort();
  const files = names.map(async (name) => {
    const path = join(folder, name);
    return { name, path, text: await readFile(path, "utf8") };
  });
  return { files: await Promise.all(files), flags: [...(await compileFlags(folder)), "-static"] };
}
