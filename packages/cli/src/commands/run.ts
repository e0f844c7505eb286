import { defaults } from "@cloche/protocol";
import { Option } from "commander";
import { collectPairs, positiveNumber, present, requireCommand, wholeNumber } from "../options.ts";
import { during } from "../progress.ts";
import { nameIsFree } from "../sandbox-names.ts";
import { printNotice } from "../terminal.ts";
import { waitFor } from "../wait-for.ts";
import { type ExecFlags, execIn } from "./exec.ts";
import { act, type Registry, type Run } from "../register.ts";

type RunFlags = ExecFlags & {
  name?: string;
  allowDuplicateName?: boolean;
  cpus?: number;
  memory?: number;
  rm?: boolean;
};

/** run: create and exec in one. */
export function addRunCommand(registry: Registry): void {
  registry.program
    .command("run [command...]")
    .description("create a sandbox and run a command in it; the exit code is the command's")
    .option("--name <name>", "of the sandbox; generated when left out")
    .addOption(new Option("--allow-duplicate-name", "also if another sandbox of the team has the name"))
    .option("--rm", "delete the sandbox when the command has ended; else it stays and runs")
    .option("--cpus <number>", `default ${defaults.cpus}`, positiveNumber)
    .option("--memory <mb>", `default ${defaults.memoryMb}`, wholeNumber)
    .option("-w, --dir <path>", "working directory; default /root")
    .option("-e, --env <KEY=VALUE>", "repeatable", collectPairs)
    .option("-u, --user <user>", "name or uid, with :group if need be; default root")
    .option("-i, --stdin", "pass standard input, as it comes and whatever bytes it is")
    .option("-t, --tty", "on a terminal of its own; -it is a dialogue; default command then: bash")
    .addHelpText("after", "\nExamples:\n  cloche run --rm -- python3 -c 'print(6*7)'\n  cloche run --rm -it")
    .action(act(registry, runInNew));
}

async function runInNew(run: Run, args: string[], flags: RunFlags): Promise<number> {
  const isDialogue = args.length === 0 && flags.tty === true;
  const command = isDialogue ? ["bash", "-l"] : requireCommand(args, "cloche run --rm -- uname -a");
  await nameIsFree(run, flags);
  const request = present({ name: flags.name, cpus: flags.cpus, memory_mb: flags.memory });
  const sandbox = await during(
    run,
    () => "creating",
    () => run.cloche.create(request, { signal: run.signal }),
  );
  const { id, info } = sandbox;
  try {
    await waitFor(run, sandbox, "SANDBOX_STATE_RUNNING");
    return await execIn(run, sandbox, command, flags);
  } finally {
    // Also after Ctrl-C.
    if (flags.rm === true) await run.cloche.gateway.deleteSandbox(id);
    else if (!run.json)
      printNotice(run.terminal, `sandbox ${info.name} stays; delete it with cloche rm ${id}`);
  }
}
