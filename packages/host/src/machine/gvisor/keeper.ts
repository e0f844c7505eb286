// The native keeper (packages/host/native/keeper.c): compiled at set-up, called here.
import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { inStep, type Progress } from "../../artifacts/step.ts";
import { obtainArtifact } from "../../artifacts/store.ts";
import { run } from "../../sys/run.ts";

const SOURCE = fileURLToPath(new URL("../../../native/keeper.c", import.meta.url));
const OUTPUT_TAIL_CHARS = 2_000;

/** Path of the compiled keeper, from the cache where it is. */
export function obtainKeeper(cache: string, progress: Progress): Promise<string> {
  const repair = "install gcc and libc6-dev (apt-get install gcc libc6-dev) and run the command again";
  return inStep(progress, "machine keeper", repair, async () => {
    const inputs = { source: await readFile(SOURCE, "utf8"), architecture: process.arch };
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "keeper",
        inputs,
        build: async (dir) => {
          const flags = ["-O2", "-static", "-Wall", "-Wextra", "-pthread"];
          await run(["gcc", ...flags, "-o", join(dir, "keeper"), SOURCE]);
        },
      },
      progress,
    );
    return join(artifact.path, "keeper");
  });
}

/** Starts `command` under a keeper that outlives us; resolves with the keeper's pid when the command exited with 0. */
export async function keep(
  keeper: string,
  command: readonly string[],
  files: { exitFile: string; outFile: string; hideNetSysctl: boolean },
): Promise<number> {
  const hide = files.hideNetSysctl ? ["--hide-net-sysctl"] : [];
  const errors = openSync(files.outFile, "a", 0o600);
  try {
    const child = spawn(keeper, ["keep", ...hide, files.exitFile, files.outFile, "--", ...command], {
      detached: true,
      stdio: ["ignore", errors, errors, "pipe"],
    });
    child.unref();
    const code = await new Promise<string>((resolve, reject) => {
      let text = "";
      const report = child.stdio[3] as NodeJS.ReadableStream;
      report.on("data", (chunk: Buffer) => {
        text += chunk.toString();
      });
      report.on("close", () => resolve(text.trim()));
      child.on("error", reject);
    });
    if (code !== "0" || child.pid === undefined) {
      const said = await readFile(files.outFile, "utf8").catch(() => "");
      throw new Error(
        `${command.at(-1)}: ${command[0]} ended with ${code || "no code"}: ${said.trim().slice(-OUTPUT_TAIL_CHARS)}`,
      );
    }
    return child.pid;
  } finally {
    closeSync(errors);
  }
}

/** Runs `command` to its end in the same private mount namespace. */
export async function runHidden(
  keeper: string,
  command: readonly string[],
  files: { outFile: string; hideNetSysctl: boolean },
): Promise<void> {
  const hide = files.hideNetSysctl ? ["--hide-net-sysctl"] : [];
  try {
    await run([keeper, "run", ...hide, files.outFile, "--", ...command]);
  } catch (error) {
    const said = await readFile(files.outFile, "utf8").catch(() => "");
    throw new Error(`${command.at(-1)}: ${said.trim().slice(-OUTPUT_TAIL_CHARS)}`, { cause: error });
  }
}
