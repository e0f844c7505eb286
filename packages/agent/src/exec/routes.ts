import { abortExecPath, ClocheError, type ExecResponse, internalHeaders, limits } from "@cloche/protocol";
import { hasDeparted } from "../http/departure.ts";
import type { Exchange } from "../http/exchange.ts";
import { type JsonObject, optionalBoolean, optionalString } from "../http/fields.ts";
import type { Route } from "../http/router.ts";
import type { OutputLog } from "../processes/output-log.ts";
import type { Process } from "../processes/process.ts";
import type { ProcessTable } from "../processes/process-table.ts";
import type { Guest } from "../spawner/index.ts";
import { decodeBytes, type Output, readInput, readOutput } from "./bytes.ts";
import { EventStream } from "./event-stream.ts";
import { restarted } from "../commands/failures.ts";
import { readProgram } from "../commands/read-program.ts";
import { canceled, type Command, type CommandEnd } from "../commands/run-command.ts";
import type { RunningExecs } from "./running-execs.ts";

export interface ExecParts {
  /** The users' guest; throws `unavailable` without a disk. */
  guest(): Guest;
  /** The sandbox's variables; those of a request override them. */
  env(): Readonly<Record<string, string>>;
  running: RunningExecs;
  processes: ProcessTable;
}

/** `POST /v1/exec` (spec/contract.md, Data plane: exec) and the edge's way to abort one. */
export function execRoutes(parts: ExecParts): Route[] {
  return [
    { method: "POST", path: "/v1/exec", handle: (exchange) => exec(parts, exchange) },
    { method: "POST", path: "/v1/exec/stdin", handle: (exchange) => writeStdin(parts.running, exchange) },
    { method: "POST", path: abortExecPath, handle: (exchange) => abort(parts.running, exchange) },
  ];
}

/** The id by which the edge may abort this exec; undefined if it did not come through an edge. */
export function execIdOf(exchange: Exchange): string | undefined {
  const id = exchange.request.headers[internalHeaders.execId];
  return typeof id === "string" && id !== "" ? id : undefined;
}

async function exec(parts: ExecParts, exchange: Exchange): Promise<ExecResponse | undefined> {
  const execId = execIdOf(exchange);
  const streaming = wantsEvents(exchange);
  return parts.running.track(execId, async (aborted) => {
    const body = await exchange.readJson();
    const stream = readStreamName(body, "stdin_stream");
    const output = readOutput(body);
    const checked = readCommand(body, parts.env());
    const closeStdin = stream === undefined ? undefined : parts.running.stdins.open(stream);
    try {
      const command = { ...checked, onStdin: closeStdin?.take };
      if (streaming) {
        await streamCommand(parts, command, exchange, aborted, output);
        return undefined;
      }
      const collected = await collectCommand(parts, command, aborted, () => hasDeparted(exchange));
      return response(collected.end, collected, output);
    } finally {
      closeStdin?.close();
    }
  });
}

const streamNamePattern = /^[\w-]{16,64}$/;

function readStreamName(body: JsonObject, name: string): string | undefined {
  const stream = optionalString(body, name);
  if (stream === undefined || streamNamePattern.test(stream)) return stream;
  throw new ClocheError("invalid_argument", `${name} must be 16 to 64 characters of A-Z, a-z, 0-9, _ and -`);
}

/** `POST /v1/exec/stdin`: answers when the program, or the pipe to it, has accepted the piece. */
async function writeStdin(running: RunningExecs, exchange: Exchange): Promise<{ ok: true }> {
  const body = await exchange.readJson();
  const stream = readStreamName(body, "stream");
  if (stream === undefined) throw new ClocheError("invalid_argument", "stream is required (a string)");
  const data = decodeBytes(body, "data", limits.execStdinPieceBytes);
  await running.stdins.write(stream, data, optionalBoolean(body, "end") ?? false);
  return { ok: true };
}

function wantsEvents(exchange: Exchange): boolean {
  return (exchange.request.headers.accept ?? "").toLowerCase().includes("text/event-stream");
}

/** Checks an exec request. Throws `invalid_argument` naming the field, 413 for a stdin beyond 16 MiB. */
export function readCommand(body: JsonObject, sandboxEnv: Readonly<Record<string, string>>): Command {
  return { ...readProgram(body, sandboxEnv), stdin: readInput(body) };
}

export interface CollectParts {
  guest(): Guest;
  processes: ProcessTable;
}

/** A command that has ended, with the first 16 MiB of each stream. */
export interface Collected {
  end: CommandEnd;
  stdout: OutputLog;
  stderr: OutputLog;
}

/**
 * Runs a command and keeps its output. `aborted` kills the command. `isCutOff` is asked after its end: if the client can no longer get
 * the answer, the list of processes keeps the exec.
 */
export async function collectCommand(
  parts: CollectParts,
  command: Command,
  aborted: AbortSignal,
  isCutOff: () => boolean = never,
): Promise<Collected> {
  const { process, end } = parts.processes.exec(parts.guest(), command);
  const ended = await untilOver(parts.processes, process, end, aborted, isCutOff);
  return { end: ended, stdout: process.spec.stdout, stderr: process.spec.stderr };
}

const never = (): boolean => false;

/** Waits for the end of an exec. `aborted` kills it, which throws `canceled`; an end by a restore throws `unavailable`. */
async function untilOver(
  processes: ProcessTable,
  process: Process,
  end: Promise<CommandEnd>,
  aborted: AbortSignal,
  isCutOff: () => boolean,
): Promise<CommandEnd> {
  const kill = (): void => void process.kill("abort");
  aborted.addEventListener("abort", kill, { once: true });
  if (aborted.aborted) kill();
  try {
    const ended = await end;
    if (aborted.aborted) throw canceled();
    if (process.endedBy === "restore") throw restarted();
    return ended;
  } finally {
    aborted.removeEventListener("abort", kill);
    processes.settle(process, isCutOff() || process.endedBy === "restore");
  }
}

function response(end: CommandEnd, { stdout, stderr }: Collected, output: Output): ExecResponse {
  const encoding = output === "base64" ? "base64" : "utf8";
  return {
    stdout: stdout.toString(encoding),
    stderr: stderr.toString(encoding),
    exit_code: end.exitCode,
    ok: end.exitCode === 0 && !end.timedOut,
    duration_ms: end.durationMs,
    timed_out: end.timedOut,
    ...(end.outOfMemory ? { out_of_memory: true } : {}),
    ...(output === "base64" ? { output_encoding: output } : {}),
    ...(stdout.truncated ? { stdout_truncated: true } : {}),
    ...(stderr.truncated ? { stderr_truncated: true } : {}),
  };
}

async function streamCommand(
  parts: ExecParts,
  command: Command,
  exchange: Exchange,
  aborted: AbortSignal,
  output: Output,
): Promise<void> {
  const events = new EventStream(exchange.response, output);
  try {
    const { process, end } = parts.processes.exec(
      parts.guest(),
      command,
      (stream, chunk) => events.output(stream, chunk),
      () => events.begin(),
    );
    const ended = await untilOver(parts.processes, process, end, aborted, () => hasDeparted(exchange));
    events.end("exit", {
      exit_code: ended.exitCode,
      ok: ended.exitCode === 0 && !ended.timedOut,
      duration_ms: ended.durationMs,
      timed_out: ended.timedOut,
      ...(ended.outOfMemory ? { out_of_memory: true } : {}),
    });
  } catch (error) {
    if (!events.begun) throw error;
    events.end("error", ClocheError.from(error).toBody());
  }
}

function abort(running: RunningExecs, exchange: Exchange): { ok: true } {
  const id = execIdOf(exchange);
  if (id === undefined) {
    throw new ClocheError("invalid_argument", `the header ${internalHeaders.execId} must name the exec`);
  }
  if (!running.abort(id)) throw new ClocheError("not_found", `no exec ${id} is running`);
  return { ok: true };
}
