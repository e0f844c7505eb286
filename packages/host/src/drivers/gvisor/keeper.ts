// Compiles the native keeper (native/keeper/main.c) at set-up, and calls it.
import { readdir, readFile, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { compileFlags } from "../../artifacts/compile-flags.ts";
import { inStep, type Progress } from "../../artifacts/step.ts";
import { obtainArtifact } from "../../artifacts/store.ts";
import type { Native } from "../../sys/native.ts";
import { CommandError, run } from "../../sys/run.ts";

const SOURCES_DIR = fileURLToPath(new URL("../../../../../native", import.meta.url));
const PROGRAMS = [
  { name: "keeper", folder: "keeper" },
  { name: "runsc-probe", folder: "gvisor" },
] as const;

/** Ample: a command takes a quarter of a second on an idle computer. */
const DEADLINE_MS = 180_000;

/** Path of the compiled keeper, from the cache if it is there. The program of probe.ts lies beside it. */
export function obtainKeeper(cache: string, progress: Progress): Promise<string> {
  const repair = "install gcc and libc6-dev (apt-get install gcc libc6-dev) and run the command again";
  return inStep(progress, "machine keeper", repair, async () => {
    const programs = await Promise.all(
      PROGRAMS.map(async ({ name, folder }) => ({ name, folder, files: await filesOf(folder) })),
    );
    const texts = await Promise.all(
      programs.flatMap(({ files }) => files).map((path) => readFile(path, "utf8")),
    );
    const inputs = { texts, architecture: process.arch };
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "keeper",
        inputs,
        build: async (dir) => {
          for (const { name, folder, files } of programs) {
            const flags = [...(await compileFlags(join(SOURCES_DIR, folder))), "-static"];
            const sources = files.filter((path) => path.endsWith(".c"));
            await run(["gcc", ...flags, "-o", join(dir, name), ...sources]);
          }
        },
      },
      progress,
    );
    return join(artifact.path, "keeper");
  });
}

/** The files of one unit that the keeper writes. */
export interface KeeperFiles {
  pidFile: string;
  exitFile: string;
  outFile: string;
}

export class Keeper {
  readonly #program: string;
  readonly #native: Native;

  /** Started through `native`: a spawn by Node copies a large process and blocks the service meanwhile. */
  constructor(program: string, native: Native) {
    this.#program = program;
    this.#native = native;
  }

  /** Starts `command` under a keeper that outlives us; resolves with the keeper's pid when the command exited with 0. */
  async keep(command: readonly string[], files: KeeperFiles): Promise<number> {
    const { pidFile, exitFile, outFile } = files;
    await this.#call(["keep", pidFile, exitFile, outFile, "--", ...command], outFile);
    return Number(await readFile(pidFile, "utf8"));
  }

  /** Runs `command` to its end. */
  async run(command: readonly string[], files: KeeperFiles): Promise<void> {
    await this.#call(["run", files.outFile, "--", ...command], files.outFile);
  }

  /** Runs a keeper command and answers its output, which goes to `outFile`, made anew. */
  async report(args: readonly string[], outFile: string, deadlineMs: number): Promise<string> {
    await rm(outFile, { force: true });
    await this.#call(args, outFile, deadlineMs);
    return readFile(outFile, "utf8");
  }

  /** Throws CommandError with the command's output. */
  async #call(args: readonly string[], outFile: string, deadlineMs = DEADLINE_MS): Promise<void> {
    const argv: [string, ...string[]] = [this.#program, ...args];
    const { exitCode } = await this.#native.exec({
      argv,
      outlives: true,
      stdoutFile: outFile,
      stderrFile: outFile,
      deadlineMs,
    });
    if (exitCode === 0) return;
    const said = await readFile(outFile, "utf8").catch(() => "");
    throw new CommandError(argv, exitCode, `exit code ${exitCode}`, said);
  }
}

/** Sources and headers of a folder of C programs, sorted. */
async function filesOf(folder: string): Promise<string[]> {
  const names = await readdir(join(SOURCES_DIR, folder));
  return names
    .filter((name) => /\.[ch]$/.test(name))
    .sort()
    .map((name) => join(SOURCES_DIR, folder, name));
}
