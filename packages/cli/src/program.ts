import { printableLines } from "@cloche/protocol";
import { Command, CommanderError } from "commander";
import manifest from "../package.json" with { type: "json" };
import { addCheckpointCommands } from "./commands/checkpoints.ts";
import { addCompletionCommand, completeWord, printCandidates } from "./commands/completion.ts";
import { addContextCommands } from "./commands/contexts.ts";
import { addCopyCommand } from "./commands/cp.ts";
import { addExecCommand } from "./commands/exec.ts";
import { addForwardCommand } from "./commands/forward.ts";
import { addClusterCommands } from "./commands/cluster.ts";
import { addLocalServiceCommands, addOperatorCommands } from "./commands/local-service.ts";
import { addMcpCommand } from "./commands/mcp.ts";
import { addOpenCommand } from "./commands/open.ts";
import type { Registry } from "./register.ts";
import { addAuditCommand } from "./commands/audit.ts";
import { addEgressCommand } from "./commands/egress.ts";
import { addSandboxCommands } from "./commands/sandboxes.ts";
import { addProcessCommands } from "./commands/processes.ts";
import { addServiceCommands } from "./commands/services.ts";
import { addRunCommand } from "./commands/run.ts";
import { addSshCommands } from "./commands/ssh.ts";
import { addStatusCommand } from "./commands/status.ts";
import { addStoreCommands } from "./commands/store.ts";
import { addTokenAndKeyCommands } from "./commands/tokens-and-keys.ts";
import { addMetricsCommand } from "./commands/metrics.ts";
import { addTopCommand } from "./commands/top.ts";
import { addUsageCommand } from "./commands/usage.ts";
import { addWatchCommand } from "./commands/watch.ts";
import { exitCodeOf, exitCodes } from "./exit-codes.ts";
import { separateCommand } from "./options.ts";
import { printError, type Terminal } from "./terminal.ts";

const afterHelp = `
The service is found through CLOCHE_URL, CLOCHE_API_KEY, CLOCHE_CA_CERT, CLOCHE_EDGE_URL and CLOCHE_BASE_DOMAIN, or as the one that
cloche login or cloche context use made the current one, or as the one on this machine (CLOCHE_HOME, default /var/lib/cloche). A sandbox is named by its id, the beginning of it, or its name.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 service not reachable or not running, 4 not found, 5 not allowed, 6 conflict with its state,
130 interrupted; exec passes the command's own through, and 125 when cloche itself failed.

Examples:
  cloche up --detach
  cloche create --name demo
  cloche exec demo -- python3 -c 'print(6*7)'
  cloche shell demo
  cloche cp ./app demo:/root/app
  cloche rm demo`;

/** Commands that end with a user's command line, and the number of operands before it. */
const withCommandLine: Array<[path: string[], operands: number]> = [
  [["exec"], 1],
  [["run"], 0],
  [["ssh"], 1],
  [["service", "exec"], 2],
  [["service", "define"], 2],
];

/** Makes the program with all commands. */
export function createProgram(registry: Omit<Registry, "program">): Registry {
  const program = new Command("cloche");
  const { terminal } = registry;
  program
    .description("isolated Linux machines that can be forked, frozen and rewound")
    .version(manifest.version, "-V, --version")
    .option("--json", "print one JSON value; errors as JSON on standard error")
    .showHelpAfterError("(see --help)")
    .addHelpText("after", afterHelp)
    .exitOverride()
    .configureOutput({
      writeOut: (text) => terminal.stdout.write(text),
      writeErr: (text) => terminal.stderr.write(printableLines(text)),
    });
  const full: Registry = { ...registry, program };
  addLocalServiceCommands(full);
  addStatusCommand(full);
  addContextCommands(full);
  addOperatorCommands(full);
  addClusterCommands(full);
  addSandboxCommands(full);
  addEgressCommand(full);
  addMetricsCommand(full);
  addTopCommand(full);
  addRunCommand(full);
  addExecCommand(full);
  addProcessCommands(full);
  addCopyCommand(full);
  addWatchCommand(full);
  addTokenAndKeyCommands(full);
  addUsageCommand(full);
  addAuditCommand(full);
  addCheckpointCommands(full);
  addServiceCommands(full);
  addStoreCommands(full);
  addOpenCommand(full);
  addForwardCommand(full);
  addMcpCommand(full);
  addCompletionCommand(full);
  addSshCommands(full);
  inheritSettings(program);
  return full;
}

/** Subcommands made with command() copy the settings of their parent at that time; groups are nested one deep. */
function inheritSettings(command: Command): void {
  for (const child of command.commands) {
    child.copyInheritedSettings(command);
    // On every subcommand, so that the option may also come after it.
    inheritSettings(child);
  }
}

/** Puts `--` before the user's command line, so that its options are not parsed as options of cloche. */
function separated(args: readonly string[], program: Command): string[] {
  const json = args[0] === "--json" ? 1 : 0;
  for (const [path, operands] of withCommandLine) {
    if (!path.every((arg, index) => args[json + index] === arg)) continue;
    let command = program;
    for (const arg of path) command = command.commands.find((child) => child.name() === arg) as Command;
    const start = json + path.length;
    return [...args.slice(0, start), ...separateCommand(args.slice(start), command, operands)];
  }
  return [...args];
}

/** Runs one command line (without node and script); answers the exit code. Never throws. */
export async function run(args: readonly string[], terminal: Terminal): Promise<number> {
  let exitCode: number = exitCodes.done;
  const registry = createProgram({ terminal, setExitCode: (code) => (exitCode = code) });
  const { program } = registry;
  try {
    if (args[0] === completeWord) {
      await printCandidates(registry, args.slice(1));
      return exitCode;
    }
    await program.parseAsync(separated(args, program), { from: "user" });
    return exitCode;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? exitCodes.done : exitCodes.usage;
    if (terminal.signal.aborted) return exitCodes.interrupted;
    printError(terminal, error, args.includes("--json"));
    return exitCodeOf(error);
  }
}
