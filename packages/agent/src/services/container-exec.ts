import { ClocheError, limits } from "@cloche/protocol";
import { type GuestProcess, type ProcessExit, SpawnError } from "../spawner/index.ts";
import type { LaunchedContainer } from "./launcher.ts";

/** Answer of `POST /v1/services/{name}/exec`. */
export interface ContainerExecAnswer {
  stdout: string;
  stderr: string;
  exit_code: number;
  timed_out: boolean;
  /** Added: true where output passed 16 MiB and was cut. */
  stdout_truncated?: boolean;
  stderr_truncated?: boolean;
}

const noSuchFile = 2;

/**
 * Runs a command in a service's container with the container's environment, user and directory. Not found: exit code 127;
 * not executable: 126. On timeout, and when the client goes away, its whole tree is killed.
 */
export async function execInContainer(
  { guest, env, user, workingDir }: LaunchedContainer,
  command: readonly string[],
  timeoutSeconds: number | undefined,
  gone: AbortSignal,
): Promise<ContainerExecAnswer> {
  const output = { stdout: new CappedOutput(), stderr: new CappedOutput() };
  let running: GuestProcess;
  try {
    running = await guest.spawn({
      argv: command,
      env: { ...env },
      cwd: workingDir,
      user,
      onOutput: (stream, chunk) => output[stream].add(chunk),
    });
  } catch (error) {
    if (!(error instanceof SpawnError) || error.stage === "lost") {
      throw new ClocheError("failed_precondition", "the container has ended", { cause: error });
    }
    if (error.stage !== "exec") {
      throw new ClocheError("invalid_argument", `the container cannot run it: ${error.message}`, {
        cause: error,
      });
    }
    const found = error.errno !== noSuchFile;
    const stderr = `${command[0]}: ${found ? "cannot be executed" : "not found"}\n`;
    return { stdout: "", stderr, exit_code: found ? 126 : 127, timed_out: false };
  }
  let timedOut = false;
  const kill = (): void => void running.kill();
  const timer =
    timeoutSeconds === undefined
      ? undefined
      : setTimeout(
          () => {
            timedOut = true;
            kill();
          },
          Math.min(timeoutSeconds * 1000, 2 ** 31 - 1),
        );
  gone.addEventListener("abort", kill, { once: true });
  if (gone.aborted) kill();
  let exit: ProcessExit;
  try {
    exit = await running.exited;
  } catch (error) {
    throw new ClocheError("failed_precondition", "the container ended while the command ran", {
      cause: error,
    });
  } finally {
    clearTimeout(timer);
    gone.removeEventListener("abort", kill);
  }
  return {
    stdout: output.stdout.text(),
    stderr: output.stderr.text(),
    exit_code: timedOut ? 137 : exit.code,
    timed_out: timedOut,
    ...(output.stdout.truncated ? { stdout_truncated: true } : {}),
    ...(output.stderr.truncated ? { stderr_truncated: true } : {}),
  };
}

class CappedOutput {
  readonly #chunks: Buffer[] = [];
  #sizeBytes = 0;
  truncated = false;

  add(chunk: Buffer): void {
    const room = limits.execOutputBytes - this.#sizeBytes;
    if (chunk.length > room) this.truncated = true;
    if (room <= 0) return;
    const kept = Buffer.from(chunk.subarray(0, room));
    this.#chunks.push(kept);
    this.#sizeBytes += kept.length;
  }

  /** Bytes that are no UTF-8 become U+FFFD. */
  text(): string {
    return Buffer.concat(this.#chunks, this.#sizeBytes).toString("utf8");
  }
}
