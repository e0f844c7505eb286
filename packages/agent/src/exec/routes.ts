import { abortExecPath, ClocheError, type ExecResponse, internalHeaders, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import {
  type JsonObject,
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
    const command = readCommand(await exchange.readJson(), parts.env());
    if (streaming) {
      await streamCommand(parts, command, exchange, aborted);
      return undefined;
    }
    const { end, ...streams } = await collectCommand(parts, command, aborted);
    return response(end, streams);
  });
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
    stdin: readStdin(body),
    timeoutMs: optionalInteger(body, "timeout_ms", 1, Number.MAX_SAFE_INTEGER),
  };
}

/** Not optionalString: a NUL is fine in what a program reads. */
function readStdin(body: JsonObject): string | undefined {
  const stdin = body["stdin"];
  if (stdin === undefined || stdin === null) return undefined;
  if (typeof stdin !== "string") throw new ClocheError("invalid_argument", "stdin must be a string");
  if (Buffer.byteLength(stdin) > limits.execStdinBytes) {
    throw new ClocheError(
      "resource_exhausted",
      `stdin must not be larger than ${limits.execStdinBytes} bytes; write a file and read that`,
      { resource: "body" },
    );
  }
  return stdin;
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

function response(end: CommandEnd, { stdout, stderr }: Streams): ExecResponse {
  return {
    stdout: stdout.text(),
    stderr: stderr.text(),
    exit_code: end.exitCode,
    ok: end.exitCode === 0 && !end.timedOut,
    duration_ms: end.durationMs,
    timed_out: end.timedOut,
    ...(end.outOfMemory ? { out_of_memory: true } : {}),
    ...(stdout.truncated ? { stdout_truncated: true } : {}),
    ...(stderr.truncated ? { stderr_truncated: true } : {}),
  };
}

async function streamCommand(
  parts: ExecParts,
  command: Command,
  exchange: Exchange,
  aborted: AbortSignal,
): Promise<void> {
  const events = new EventStream(exchange.response);
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
