/** Calls the native keeper (native/keeper/main.c). */
import { readFile, rm } from "node:fs/promises";
import { CommandError } from "@cloche/base/run";
import type { Native } from "../../sys/native.ts";

/** Ample: a command takes a quarter of a second on an idle computer. */
const defaultDeadlineMs = 180_000;

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
  async #call(args: readonly string[], outFile: string, deadlineMs = defaultDeadlineMs): Promise<void> {
    const argv: [string, ...string[]] = [this.#program, ...args];
    const { exitCode } = await this.#native.exec({
      argv,
      outlives: true,
      stdoutFile: outFile,
      stderrFile: outFile,
      deadlineMs,
    });
    if (exitCode === 0) return;
    const output = await readFile(outFile, "utf8").catch(() => "");
    throw new CommandError(argv, exitCode, `exit code ${exitCode}`, output);
  }
}
