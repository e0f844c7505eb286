import { ClocheError } from "@cloche/protocol";
import {
  type Guest,
  type GuestProcess,
  type ProcessExit,
  SpawnError,
  type SpawnRequest,
  type TerminalSize,
} from "../spawner/index.ts";
import { countdown } from "./countdown.ts";

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
  /** Run on a terminal of this size; undefined: no terminal. */
  tty?: TerminalSize | undefined;
  /** Standard error goes into standard output. */
  mergeOutput?: boolean | undefined;
  /** Background children stay part of the command's tree and are killed with it. */
  holdTree?: boolean | undefined;
}

/** Standard input of a running program. */
export type Stdin = Pick<GuestProcess, "write" | "end">;

export interface CommandEnd {
  /** 128 + signal after an end by a signal; 137 after the timeout; 126 and 127 as in shells. */
  exitCode: number;
  /** The number of the signal that ended it. */
  signal: number | null;
  timedOut: boolean;
  durationMs: number;
  /** One of its processes was killed because the sandbox's memory was used up. */
  outOfMemory: boolean;
}

export type Taker = NonNullable<SpawnRequest["onOutput"]>;

export interface LaunchedCommand {
  process: GuestProcess;
  /** Resolves when the command has ended and `onOutput` has taken all its output; rejects with `SpawnError`. */
  end: Promise<CommandEnd>;
}

const killedExitCode = 137;
const sigkill = 9;

/**
 * Launches a command in a guest. Only its timeout kills its whole tree; a lost connection does not. `onStarted` is called when the
 * program runs, before any output.
 */
export function launchCommand(
  guest: Guest,
  command: Command,
  onOutput: Taker,
  onStarted?: () => void,
): LaunchedCommand {
  const startedMs = performance.now();
  const request: SpawnRequest = {
    argv: command.cmd,
    env: command.env,
    stdin: command.stdin === undefined && command.onStdin === undefined ? "none" : "pipe",
    onOutput,
    ...(command.dir === undefined ? {} : { cwd: command.dir }),
    ...(command.user === undefined ? {} : { user: command.user }),
    ...(command.tty === undefined ? {} : { pty: command.tty }),
    ...(command.mergeOutput === true ? { mergeOutput: true } : {}),
    ...(command.holdTree === true ? { tree: "hold" } : {}),
  };
  const running = guest.launch(request, onStarted);
  if (request.stdin === "pipe") feed(running, command);
  return { process: running, end: untilEnd(running, command.timeoutMs, startedMs) };
}

async function untilEnd(
  running: GuestProcess,
  timeoutMs: number | undefined,
  startedMs: number,
): Promise<CommandEnd> {
  let timedOut = false;
  const stopTimer =
    timeoutMs === undefined
      ? undefined
      : countdown(timeoutMs, () => {
          timedOut = true;
          void running.kill();
        });
  let exit: ProcessExit;
  try {
    exit = await running.exited;
    // A kill for memory is reported before the end, but on another socket: read that socket first.
    if (exit.code === killedExitCode) await new Promise((resolve) => setImmediate(resolve));
  } finally {
    stopTimer?.();
  }
  return {
    exitCode: timedOut ? killedExitCode : exit.code,
    signal: timedOut ? sigkill : exit.signal,
    timedOut,
    outOfMemory: running.outOfMemory,
    durationMs: Math.round(performance.now() - startedMs),
  };
}

function feed(running: GuestProcess, { stdin, onStdin }: Command): void {
  if (stdin !== undefined) void running.write(stdin);
  if (onStdin === undefined) running.end();
  else onStdin(running);
}

export function canceled(): ClocheError {
  return new ClocheError("canceled", "the client went away; the command was killed");
}

export const isLost = (error: unknown): boolean => error instanceof SpawnError && error.stage === "lost";
