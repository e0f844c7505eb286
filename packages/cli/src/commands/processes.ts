import type { AttachEvent, ProcessInfo, Sandbox, SandboxProcess } from "@cloche/sdk";
import { NotFoundError, UsageError } from "../exit-codes.ts";
import { collectPairs, present, wholeNumber } from "../options.ts";
import { printJson, printJsonLine, printLines, printNotice, printTable, write } from "../terminal.ts";
import { attachTo, terminalSize } from "./attached.ts";
import { act, type Registry, type Run } from "../register.ts";

const shownCharacters = 60;

/** ps, kill, attach, output, shell. */
export function addProcessCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("ps <sandbox>")
    .description(
      "list processes: what was started detached or on a terminal, running execs, services, containers",
    )
    .option("-a, --all", "also those that have ended")
    .action(act(registry, list));
  program
    .command("kill <sandbox> <process>")
    .description("send a signal to a process, or end its whole tree")
    .option("-s, --signal <signal>", "name or number; default: end the whole tree and forget it")
    .action(act(registry, kill));
  program
    .command("attach <sandbox> <process>")
    .description(
      "connect this terminal to a process, with what it wrote so far; Ctrl-P Ctrl-Q leaves it running",
    )
    .option("--no-input", "output only")
    .action(act(registry, attach));
  program
    .command("output <sandbox> <process>")
    .description("print what a process wrote, as far as it is kept")
    .option("-f, --follow", "go on until it ends, and pass its exit code through")
    .option("--stderr", "standard error alone")
    .addHelpText(
      "after",
      "\nWith --json: one object; with --follow one a line for each piece of output, and the end.",
    )
    .action(act(registry, output));
  program
    .command("shell <sandbox>")
    .description("a shell on a terminal of its own; it lives on when the connection is lost, see attach")
    .option("-w, --dir <path>", "working directory")
    .option("-e, --env <KEY=VALUE>", "repeatable", collectPairs)
    .option("-u, --user <user>", "name or uid, with :group if need be; default root")
    .option("--shell <program>", "default: bash", "bash")
    .addHelpText("after", "\nExamples:\n  cloche shell demo\n  cloche ps demo && cloche attach demo proc-…")
    .action(act(registry, shell));
}

async function list(run: Run, nameOrId: string, options: { all?: boolean }): Promise<void> {
  const sandbox = await run.sandbox(nameOrId);
  const status = options.all === true ? undefined : ("running" as const);
  const processes = await sandbox.processes.list({ ...present({ status }), signal: run.signal });
  if (run.json) return printJson(run.terminal, processes);
  const rows = processes.map((one) => [
    one.process_id,
    one.pid === 0 ? "" : String(one.pid),
    one.kind,
    statusOf(one),
    one.started_at,
    [one.tag === "" ? "" : `[${one.tag}]`, one.cmd.join(" ").slice(0, shownCharacters)].join(" ").trim(),
  ]);
  return printTable(run.terminal, ["PROCESS", "PID", "KIND", "STATUS", "STARTED", "COMMAND"], rows);
}

async function kill(run: Run, nameOrId: string, id: string, options: { signal?: string }): Promise<void> {
  const process = await find(run, await run.sandbox(nameOrId), id);
  const { signal } = options;
  const number = signal !== undefined && /^\d+$/.test(signal) ? wholeNumber(signal) : undefined;
  const name = signal === undefined || signal.toUpperCase().startsWith("SIG") ? signal : `SIG${signal}`;
  const info =
    signal === undefined
      ? await process.delete({ signal: run.signal })
      : await process.signal(number ?? (name as string).toUpperCase(), { signal: run.signal });
  return run.json ? printJson(run.terminal, info) : printLines(run.terminal, process.id);
}

async function attach(run: Run, nameOrId: string, id: string, options: { input: boolean }): Promise<number> {
  refuseJson(run);
  const process = await find(run, await run.sandbox(nameOrId), id);
  return show(run, process, { input: options.input && process.info.stdin === "open" });
}

async function output(
  run: Run,
  nameOrId: string,
  id: string,
  options: { follow?: boolean; stderr?: boolean },
): Promise<number> {
  const process = await find(run, await run.sandbox(nameOrId), id);
  const { stdout, stderr } = run.terminal;
  const isWanted = (of: string): boolean => options.stderr !== true || of === "stderr";
  if (options.follow === true) {
    for await (const event of process.events({ signal: run.signal })) {
      if (run.json) {
        if (!("data" in event) || isWanted(event.type)) await printJsonLine(run.terminal, asText(event));
        if (event.type === "exit") return event.process.exit_code ?? 0;
        continue;
      }
      if (event.type === "exit") return event.process.exit_code ?? 0;
      if (event.type === "gap")
        printNotice(run.terminal, `${event.to - event.from} bytes of ${event.stream} are no longer kept`);
      else if (options.stderr !== true) await write(event.type === "stdout" ? stdout : stderr, event.data);
      else if (event.type === "stderr") await write(stdout, event.data);
    }
    return 0;
  }
  const stream = options.stderr === true ? "stderr" : "stdout";
  const bytes = await process.output({ stream, signal: run.signal });
  if (run.json) await printJson(run.terminal, { stream, data: decoder.decode(bytes) });
  else await write(stdout, bytes);
  return 0;
}

const decoder = new TextDecoder();
const asText = (event: AttachEvent): object =>
  "data" in event ? { ...event, data: decoder.decode(event.data) } : event;

interface ShellFlags {
  dir?: string;
  env?: Record<string, string>;
  user?: string;
  shell: string;
}

async function shell(run: Run, nameOrId: string, options: ShellFlags): Promise<number> {
  const sandbox = await run.sandbox(nameOrId);
  return onTerminal(run, sandbox, [options.shell, "-l"], present({ ...options, shell: undefined }));
}

function refuseJson({ json }: Run): void {
  if (json) throw new UsageError("a terminal and --json do not go together; see cloche output --json");
}

/** Runs a command on a terminal in the sandbox, shown on the local terminal; answers its exit code. */
export async function onTerminal(
  run: Run,
  sandbox: Sandbox,
  cmd: readonly string[],
  options: { dir?: string; env?: Record<string, string>; user?: string; timeout_ms?: number },
): Promise<number> {
  const { terminal, signal } = run;
  refuseJson(run);
  const env = { ...present({ TERM: terminal.env["TERM"] }), ...options.env };
  const size = terminalSize(terminal) ?? {};
  const process = await sandbox.processes.terminal(cmd, { ...present({ ...options, env }), ...size, signal });
  return show(run, process, { input: true });
}

async function show(run: Run, process: SandboxProcess, settings: { input: boolean }): Promise<number> {
  const { terminal } = run;
  const end = await attachTo(process, terminal, settings);
  if (end.kind === "exit") return end.process.exit_code ?? 0;
  terminal.stderr.write("\r\n");
  printNotice(terminal, `detached; it goes on as ${process.id}`);
  return 0;
}

/** Finds a process by its id or the beginning of its id, with or without `proc-`. */
async function find(run: Run, sandbox: Sandbox, idPrefix: string): Promise<SandboxProcess> {
  const all = await sandbox.processes.list({ signal: run.signal });
  const found = all.filter(
    ({ process_id: id }) => id.startsWith(idPrefix) || id.startsWith(`proc-${idPrefix}`),
  );
  const [one] = found;
  if (one === undefined)
    throw new NotFoundError(`there is no process ${idPrefix} in ${sandbox.info.name || sandbox.id}`);
  if (found.length > 1 && one.process_id !== idPrefix)
    throw new NotFoundError(`${idPrefix} is the beginning of ${found.length} processes; give more of it`);
  return sandbox.processes.get(one.process_id, { signal: run.signal });
}

function statusOf(one: ProcessInfo): string {
  if (one.status === "running") return "running";
  return one.ended_by === null || one.ended_by === "exit"
    ? `exited ${one.exit_code ?? ""}`.trim()
    : `${one.ended_by} ${one.signal ?? one.exit_code ?? ""}`.trim();
}
