/**
 * Health by the check of an image's config: a program that is run in the container, again and again. Until it first passes it runs often,
 * afterwards once an interval; so many failures in a row as the image says make the service unhealthy, one success healthy again. A check
 * is no activity of users: it is in no list of processes and keeps no sandbox awake.
 */
import { launchCommand } from "../exec/index.ts";
import type { HealthCheck } from "../oci-images/health-check.ts";
import { SpawnError } from "../spawner/index.ts";
import { pause, type ServiceHealth } from "./health.ts";
import type { LaunchedContainer } from "./launcher.ts";

const firstPauseMs = 250;
const outputBytesMax = 4_096;
const shownCharacters = 200;

export class ImageHealth implements ServiceHealth {
  readonly goal = "its health check passed";
  readonly #check: HealthCheck;
  readonly #container: LaunchedContainer;
  readonly #note: (text: string) => void;
  /** Why the last check failed; empty if it passed. */
  #failure = "it has not ended yet";
  #failures = 0;
  #isLost = false;

  constructor(check: HealthCheck, container: LaunchedContainer, note: (text: string) => void) {
    this.#check = check;
    this.#container = container;
    this.#note = note;
  }

  async comesUp(signal: AbortSignal): Promise<boolean> {
    const pauseMsMax = Math.min(this.#check.startIntervalMs, this.#check.intervalMs);
    for (let pauseMs = firstPauseMs; !signal.aborted; pauseMs = Math.min(pauseMs * 2, pauseMsMax)) {
      if (await this.#passes(signal)) return true;
      await pause(pauseMs, signal);
    }
    return false;
  }

  async watch(signal: AbortSignal): Promise<void> {
    for (;;) {
      await pause(this.#check.intervalMs, signal);
      if (signal.aborted) return;
      const passed = await this.#passes(signal);
      if (signal.aborted) return;
      this.#failures = passed ? 0 : this.#failures + 1;
      const isLost = this.#failures >= this.#check.retries || (this.#isLost && !passed);
      if (isLost !== this.#isLost) this.#note(isLost ? this.#lostMessage() : "its health check passes again");
      this.#isLost = isLost;
    }
  }

  lost(): string {
    return this.#isLost ? this.#lostMessage() : "";
  }

  late(within: string): string {
    return `its image's health check did not pass ${within}: ${this.#failure}`;
  }

  #lostMessage(): string {
    return `its image's health check fails: ${this.#failure}`;
  }

  async #passes(signal: AbortSignal): Promise<boolean> {
    const failure = await this.#run(signal);
    if (!signal.aborted) this.#failure = failure;
    return failure === "" && !signal.aborted;
  }

  /** Runs the check once; answers why it failed. */
  async #run(signal: AbortSignal): Promise<string> {
    const { argv, timeoutMs } = this.#check;
    const { guest, env, user, workingDir } = this.#container;
    let output = Buffer.alloc(0);
    const { process, end } = launchCommand(
      guest,
      { cmd: argv, env, dir: workingDir, user: user === "" ? undefined : user, timeoutMs, mergeOutput: true },
      (_stream, chunk) => {
        output = Buffer.concat([output, chunk.subarray(0, outputBytesMax - output.length)]);
      },
    );
    const kill = (): void => void process.kill().catch(() => undefined);
    signal.addEventListener("abort", kill, { once: true });
    if (signal.aborted) kill();
    try {
      const { exitCode, timedOut } = await end;
      if (exitCode === 0 && !timedOut) return "";
      const how = timedOut ? `not ended after ${timeoutMs / 1_000} s` : `exit code ${exitCode}`;
      const line = firstLine(output);
      return line === "" ? how : `${how}, ${line}`;
    } catch (error) {
      const why = error instanceof SpawnError && error.stage === "exec" ? "there is no such program" : "";
      return `${JSON.stringify(argv[0])} cannot be run${why === "" ? "" : `: ${why}`}`;
    } finally {
      signal.removeEventListener("abort", kill);
    }
  }
}

/** The first line of the output that says something, without control characters. */
function firstLine(output: Buffer): string {
  const lines = output.toString("utf8").split("\n");
  // oxlint-disable-next-line no-control-regex -- these are what is taken out
  const plain = lines.map((line) => line.replaceAll(/[\u0000-\u001f\u007f-\u009f]+/g, " ").trim());
  return (plain.find((line) => line !== "") ?? "").slice(0, shownCharacters);
}
