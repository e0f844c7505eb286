import { ClocheError } from "@cloche/protocol";
import { type Guest, type GuestProcess, SpawnError, type SpawnRequest } from "../spawner/index.ts";
import { countdown } from "./countdown.ts";
import { notExecuted } from "./failures.ts";

export interface Command {
  /** Program and arguments, not empty. */
  cmd: readonly string[];
  /** The whole environment, see `programEnvironment`. */
  env: Readonly<Record<string, string>>;
  dir?: string | undefined;
  user?: string | undefined;
  /** Undefined: /dev/null. */
  stdin?: Buffer | undefined;
  /** Called with the program's standard input, which then stays open after `stdin`. */
  onStdin?: ((stdin: Stdin) => void) | undefined;
  /** Undefined: none. */
  timeoutMs?: number | undefined;
}

/** Standard input of a program that runs. */
export type Stdin = Pick<GuestProcess, "write" | "end">;

export interface CommandEnd {
  /** 128 + signal where one ended it; 137 after the timeout; 126 and 127 as shells use them. */
  exitCode: number;
  timedOut: boolean;
  durationMs: number;
  /** One of its processes was killed because the sandbox's memory was used up. */
  outOfMemory: boolean;
}

type Taker = NonNullable<SpawnRequest["onOutput"]>;

const killedExitCode = 137;

/**
 * Runs a command in a guest and answers when it has ended and `onOutput` has taken what it wrote. The timeout and `aborted`
 * kill its whole tree; nothing else does, least of all a lost connection. A program that is not there is no error: code
 * 127 and a line on stderr. `onStarted` is called once the program runs, for those who must know before it says anything.
 * Throws `invalid_argument` for `dir` and `user`, `canceled` after an abort.
 */
export async function runCommand(
  guest: Guest,
  command: Command,
  onOutput: Taker,
  aborted: AbortSignal,
  onStarted?: () => void,
): Promise<CommandEnd> {
  if (aborted.aborted) throw canceled();
  const startedMs = performance.now();
  const request: SpawnRequest = {
    argv: command.cmd,
    env: command.env,
    stdin: command.stdin === undefined && command.onStdin === undefined ? "none" : "pipe",
    onOutput,
    ...(command.dir === undefined ? {} : { cwd: command.dir }),
    ...(command.user === undefined ? {} : { user: command.user }),
  };
  const running = guest.launch(request, onStarted);
  const end = (exitCode: number, timedOut: boolean): CommandEnd => ({
    exitCode,
    timedOut,
    outOfMemory: running.outOfMemory,
    durationMs: Math.round(performance.now() - startedMs),
  });
  let timedOut = false;
  const kill = (): void => void running.kill();
  const stopTimer =
    command.timeoutMs === undefined
      ? undefined
      : countdown(command.timeoutMs, () => {
          timedOut = true;
          kill();
        });
  aborted.addEventListener("abort", kill, { once: true });
  if (request.stdin === "pipe") feed(running, command);
  try {
    const { code } = await running.exited;
    // That it was killed for memory is told before its end, but on another socket: what has arrived there is read first.
    if (code === killedExitCode) await new Promise((resolve) => setImmediate(resolve));
    if (aborted.aborted) throw canceled();
    return end(timedOut ? killedExitCode : code, timedOut);
  } catch (error) {
    if (!(error instanceof SpawnError)) throw error;
    const { exitCode, message } = notExecuted(error, command);
    await onOutput("stderr", Buffer.from(message));
    return end(exitCode, false);
  } finally {
    stopTimer?.();
    aborted.removeEventListener("abort", kill);
  }
}

function feed(running: GuestProcess, { stdin, onStdin }: Command): void {
  if (stdin !== undefined) void running.write(stdin);
  if (onStdin === undefined) running.end();
  else onStdin(running);
}

function canceled(): ClocheError {
  return new ClocheError("canceled", "the client went away; the command was killed");
}
