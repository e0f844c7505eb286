import { abortExecPath, ClocheError, type ExecResponse, internalHeaders, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import {
  type JsonObject,
  optionalBoolean,
  optionalEnvironment,
  optionalInteger,
  optionalString,
  requiredCommand,
} from "../http/fields.ts";
import type { Route } from "../http/router.ts";
import type { Guest } from "../spawner/index.ts";
import { programEnvironment } from "./environment.ts";
import { EventStream } from "./event-stream.ts";
import { CollectedOutput } from "./output.ts";
import { decodeBytes, type Output, readInput, readOutput } from "./bytes.ts";
import { type Command, type CommandEnd, runCommand } from "./run-command.ts";
import type { RunningExecs } from "./running-execs.ts";

export interface ExecParts {
  /** The users' guest; throws `unavailable` without a disk. */
  guest(): Guest;
  /** The sandbox's own variables, below those of a request. */
  env(): Readonly<Record<string, string>>;
  running: RunningExecs;
  /** Told of every piece of output: a sandbox that prints is not idle. */
  onActivity(): void;
}

/** `POST /v1/exec` (service-interface.md, Data plane: exec) and the edge's way to abort one. */
export function execRoutes(parts: ExecParts): Route[] {
  return [
    { method: "POST", path: "/v1/exec", handle: (exchange) => exec(parts, exchange) },
    { method: "POST", path: "/v1/exec/stdin", handle: (exchange) => writeStdin(parts.running, exchange) },
    { method: "POST", path: abortExecPath, handle: (exchange) => abort(parts.running, exchange) },
  ];
}

/** The id under which the edge may abort this exec; undefined when it did not come through an edge. */
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
      const { end, ...streams } = await collectCommand(parts, command, aborted);
      return response(end, streams, output);
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

/** `POST /v1/exec/stdin`: answers when the program, or the pipe to it, has taken the piece. */
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
  const cmd = requiredCommand(body, "cmd");
  if (cmd.length > limits.execArguments) {
    throw new ClocheError("invalid_argument", `cmd must not have more than ${limits.execArguments} strings`);
  }
  const long = cmd.findIndex((argument) => Buffer.byteLength(argument) >= limits.execArgumentBytes);
  if (long >= 0) {
    throw new ClocheError(
      "invalid_argument",
      `cmd[${long}] must be shorter than ${limits.execArgumentBytes} bytes; pass long text in stdin`,
    );
  }
  const dir = optionalString(body, "dir");
  if (dir === "") throw new ClocheError("invalid_argument", "dir must not be empty");
  const user = optionalString(body, "user");
  if (user === "") throw new ClocheError("invalid_argument", "user must not be empty");
  return {
    cmd,
    dir,
    user,
    env: programEnvironment(sandboxEnv, optionalEnvironment(body, "env")),
    stdin: readInput(body),
    timeoutMs: optionalInteger(body, "timeout_ms", 1, Number.MAX_SAFE_INTEGER),
  };
}

interface Streams {
  stdout: CollectedOutput;
  stderr: CollectedOutput;
}

/** Runs a command and keeps its output, up to 16 MiB a stream. */
export async function collectCommand(
  parts: Pick<ExecParts, "guest" | "onActivity">,
  command: Command,
  aborted: AbortSignal,
): Promise<Streams & { end: CommandEnd }> {
  const streams: Streams = {
    stdout: new CollectedOutput(limits.execOutputBytes),
    stderr: new CollectedOutput(limits.execOutputBytes),
  };
  const end = await runCommand(
    parts.guest(),
    command,
    (stream, chunk) => {
      parts.onActivity();
      streams[stream].take(chunk);
    },
    aborted,
  );
  return { ...streams, end };
}

function response(end: CommandEnd, { stdout, stderr }: Streams, output: Output): ExecResponse {
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
    const end = await runCommand(
      parts.guest(),
      command,
      (stream, chunk) => {
        parts.onActivity();
        return events.output(stream, chunk);
      },
      aborted,
      () => events.begin(),
    );
    events.end("exit", {
      exit_code: end.exitCode,
      ok: end.exitCode === 0 && !end.timedOut,
      duration_ms: end.durationMs,
      timed_out: end.timedOut,
      ...(end.outOfMemory ? { out_of_memory: true } : {}),
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
