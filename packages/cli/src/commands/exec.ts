import type { ExecBytesOptions, ExecResponse, Sandbox, SandboxDataPlane } from "@cloche/sdk";
import { exitCodes, UsageError } from "../exit-codes.ts";
import { collectPairs, positiveNumber, present, requireCommand } from "../options.ts";
import { standardInput } from "../standard-input.ts";
import { printError, printJson, printLines, printNotice, write } from "../terminal.ts";
import { onTerminal } from "./processes.ts";
import { act, type Registry, type Run } from "../register.ts";

export interface ExecFlags {
  dir?: string;
  env?: Record<string, string>;
  user?: string;
  timeout?: number;
  stdin?: boolean;
  tty?: boolean;
  detach?: boolean;
  tag?: string;
}

/** exec: prints output while the command runs; exits with the command's exit code. */
export function addExecCommand(registry: Registry): void {
  registry.program
    .command("exec <sandbox> [command...]")
    .description(
      "run a command in a sandbox; its output comes as it is written and its exit code is passed through",
    )
    .option("-w, --dir <path>", "working directory; default /root")
    .option("-e, --env <KEY=VALUE>", "repeatable", collectPairs)
    .option("-u, --user <user>", "name or uid, with :group if need be; default root")
    .option("--timeout <seconds>", "kill it after this time; default never", positiveNumber)
    .option("-i, --stdin", "pass standard input, as it comes and whatever bytes it is")
    .option("-t, --tty", "on a terminal of its own; -it is a dialogue")
    .option("-d, --detach", "print the id of the process and leave it running: see ps, attach, output, kill")
    .option("--tag <text>", "with --detach: shown by ps")
    .addHelpText(
      "after",
      `
Exit code: the command's own; 127 not found, 126 not executable, 128 + N killed by signal N (137: timed out);
${exitCodes.execFailed} when cloche itself failed, ${exitCodes.interrupted} when interrupted.

Examples:
  cloche exec demo -- python3 -c 'print(6*7)'
  cloche exec demo ls -l /etc
  echo hello | cloche exec -i demo -- wc -c
  cloche exec -it demo -- python3
  cloche exec -d demo -- make -C /srv
  cloche exec -w /srv -e PORT=80 demo -- sh -c 'echo $PORT'`,
    )
    .action(async (nameOrId: string, args: string[], options: ExecFlags) => {
      try {
        await act(registry, execute)(nameOrId, args, options);
      } catch (error) {
        if (registry.terminal.signal.aborted || error instanceof UsageError) throw error;
        printError(registry.terminal, error, registry.program.opts<{ json?: boolean }>().json === true);
        registry.setExitCode(exitCodes.execFailed);
      }
    });
}

async function execute(run: Run, nameOrId: string, args: string[], options: ExecFlags): Promise<number> {
  const command = requireCommand(args, "cloche exec demo -- ls -l");
  return execIn(run, await run.sandbox(nameOrId), command, options);
}

/** Runs the command with the command's terminal or streams; answers its exit code. */
export async function execIn(
  run: Run,
  sandbox: Sandbox,
  command: string[],
  options: ExecFlags,
): Promise<number> {
  const { terminal, signal } = run;
  const { dir, env, user, timeout } = options;
  const timeout_ms = timeout === undefined ? undefined : Math.ceil(timeout * 1000);
  if (options.detach === true) return detach(run, sandbox, command, options);
  if (options.tty === true) return onTerminal(run, sandbox, command, present({ dir, env, user, timeout_ms }));
  const stdin = options.stdin === true ? await standardInput(terminal.stdin) : undefined;
  const request = { ...present({ dir, env, user, timeout_ms, stdin }), signal };
  if (run.json) {
    const answer = await collect(sandbox, command, request);
    await printJson(terminal, answer);
    return answer.exit_code;
  }
  for await (const event of sandbox.execStreamBytes(command, request)) {
    if (event.type === "exit") {
      if (event.out_of_memory === true) printNotice(terminal, "killed: the sandbox's memory is used up");
      if (event.timed_out) printNotice(terminal, `timed out after ${timeout} s and was killed`);
      return event.exit_code;
    }
    await write(event.type === "stdout" ? terminal.stdout : terminal.stderr, event.data);
  }
  return exitCodes.execFailed;
}

/** Starts a process, prints its id and leaves it running. */
async function detach(run: Run, sandbox: Sandbox, command: string[], options: ExecFlags): Promise<number> {
  const { dir, env, user, timeout, tag } = options;
  const timeout_ms = timeout === undefined ? undefined : Math.ceil(timeout * 1000);
  const tty = options.tty === true ? {} : undefined;
  const stdin = options.stdin === true ? ("open" as const) : undefined;
  const request = present({ dir, env, user, timeout_ms, tty, stdin, tag });
  const process = await sandbox.processes.start(command, { ...request, signal: run.signal });
  if (run.json) await printJson(run.terminal, process.info);
  else await printLines(run.terminal, process.id);
  return exitCodes.done;
}

/** Answers the whole output. With streamed input it is collected from the events, because the command must run before the input ends. */
async function collect(
  sandbox: Pick<SandboxDataPlane, "exec" | "execStreamBytes">,
  command: string[],
  { stdin, ...request }: ExecBytesOptions,
): Promise<ExecResponse> {
  if (stdin === undefined) return sandbox.exec(command, request);
  const output = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  for await (const event of sandbox.execStreamBytes(command, { ...request, stdin })) {
    if (event.type !== "exit") output[event.type].push(event.data);
    else {
      const { type: _type, ...end } = event;
      const text = (pieces: Uint8Array[]): string => Buffer.concat(pieces).toString();
      return { stdout: text(output.stdout), stderr: text(output.stderr), ...end };
    }
  }
  throw new Error("the command's answer has no end");
}
