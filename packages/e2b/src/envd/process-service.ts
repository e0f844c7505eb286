/** `process.Process`: E2B's commands and terminals on Cloche's processes (docs/processes.md). */
import type { ServerResponse } from "node:http";
import { limits } from "@cloche/protocol";
import { setTimeout as sleep } from "node:timers/promises";
import { type AttachEvent, ClocheConnectionError, type ProcessInfo, type SandboxProcess } from "@cloche/sdk";
import { badField, E2bError, notRunning } from "../e2b-error.ts";
import { type Fields, signalOf } from "../http.ts";
import type { OpenSandbox } from "./sandboxes.ts";
import type { MessageStream } from "./connect-stream.ts";
import { endOf } from "./process-end.ts";
import { userPath } from "./user-path.ts";

/** How long an ended process is listed; clients that listened have got its end. */
const keepSeconds = 60;

export interface StartContext {
  user: string;
  /** Time after which the command is killed; undefined: never. */
  timeoutMs: number | undefined;
  response: ServerResponse;
}

/** Starts a command and streams its start, output and end. The command goes on when the client leaves. */
export async function start(
  sandbox: OpenSandbox,
  request: Fields,
  stream: MessageStream,
  { user, timeoutMs, response }: StartContext,
): Promise<void> {
  const config = (request.process ?? {}) as Fields;
  const { cmd, args = [], envs = {} } = config;
  if (typeof cmd !== "string" || cmd === "") throw badField("process.cmd", cmd, "a program");
  if (!isTexts(args)) throw badField("process.args", args, "an array of strings");
  const account = await sandbox.accounts.find(user);
  const tty = request.pty === undefined || request.pty === null ? undefined : cellsOf(request.pty);
  const hasInput = request.stdin !== false;
  const process = await sandbox.plane.processes.start([cmd, ...args], {
    user: account.name,
    ...(config.cwd ? { dir: userPath("process.cwd", config.cwd, account) } : {}),
    env: { E2B_SANDBOX: "true", E2B_SANDBOX_ID: sandbox.id, ...(envs as Record<string, string>) },
    output_limit_bytes: limits.processOutputBytesMax,
    keep_seconds: keepSeconds,
    ...(tty ? { tty } : { stdin: hasInput ? "open" : "none" }),
    ...(typeof request.tag === "string" && { tag: request.tag }),
    ...(timeoutMs !== undefined && { timeout_ms: timeoutMs }),
  });
  await stream.send({ event: { start: { pid: sandbox.processIds.note(process.info) } } });
  await follow(sandbox, process, { stdout: 0, stderr: 0 }, stream, signalOf(response));
}

/** Streams the output of a running process from now on, and its end. */
export async function connect(
  sandbox: OpenSandbox,
  request: Fields,
  stream: MessageStream,
  response: ServerResponse,
): Promise<void> {
  const { process, pid } = await sandbox.processIds.find(request.process);
  const { stdout_bytes: stdout, stderr_bytes: stderr } = process.info;
  await stream.send({ event: { start: { pid } } });
  await follow(sandbox, process, { stdout, stderr }, stream, signalOf(response));
}

const againMs = 200;

/** Follows a process; makes a lost connection again while the sandbox runs. Cuts the stream of a paused sandbox, as E2B, not to wake it. */
async function follow(
  { id, isRunning }: OpenSandbox,
  process: SandboxProcess,
  seen: { stdout: number; stderr: number },
  stream: MessageStream,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    const from = { after_stdout: seen.stdout, after_stderr: seen.stderr };
    const events = process.events({ ...from, signal, reconnect: false });
    try {
      if (await pass(process, events, seen, stream)) return;
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof ClocheConnectionError)) throw error;
    }
    if (!(await isRunning())) throw notRunning(id);
    await sleep(againMs, undefined, { signal });
  }
}

/** Passes on output; answers whether the process ended. */
async function pass(
  process: SandboxProcess,
  events: AsyncIterable<AttachEvent>,
  seen: { stdout: number; stderr: number },
  stream: MessageStream,
): Promise<boolean> {
  const isTerminal = process.info.tty !== null;
  for await (const event of events) {
    if (event.type === "exit") {
      await stream.send({ event: { end: endOf(event.process) } });
      return true;
    }
    if (event.type === "gap") {
      const { from, to } = event;
      throw new E2bError(
        "data_loss",
        `output was read too slowly: ${to - from} bytes of ${event.stream} are lost`,
      );
    }
    seen[event.type] = event.offset + event.data.length;
    const data = Buffer.from(event.data).toString("base64");
    await stream.send({ event: { data: { [isTerminal ? "pty" : event.type]: data } } });
  }
  return false;
}

export async function list({ processIds }: OpenSandbox): Promise<Fields> {
  return { processes: (await processIds.running()).map((info) => shown(info, processIds.note(info))) };
}

/** A process for a list, without its variables, which only the processes of the sandbox may know. */
function shown({ cmd, dir, tag }: ProcessInfo, pid: number): Fields {
  const [program = "", ...args] = cmd;
  return {
    config: { cmd: program, args, envs: {}, ...(dir !== "" && { cwd: dir }) },
    pid,
    ...(tag !== "" && { tag }),
  };
}

export async function sendInput({ processIds }: OpenSandbox, request: Fields): Promise<Fields> {
  const bytes = inputOf(request.input);
  await processIds.with(request.process, (process) => process.write(bytes));
  return {};
}

/** Writes the client's pieces of input in order; answers after the last. */
export async function streamInput(
  { processIds }: OpenSandbox,
  messages: AsyncIterable<Fields>,
): Promise<Fields> {
  let selector: unknown;
  for await (const { start: started, data } of messages) {
    if (started !== undefined) selector = (started as Fields).process;
    if (data === undefined) continue;
    const bytes = inputOf((data as Fields).input);
    await processIds.with(selector, (process) => process.write(bytes));
  }
  return {};
}

export async function closeStdin({ processIds }: OpenSandbox, request: Fields): Promise<Fields> {
  await processIds.with(request.process, (process) => process.endInput());
  return {};
}

const signals: Record<string, string> = {
  "9": "SIGKILL",
  "15": "SIGTERM",
  SIGNAL_SIGKILL: "SIGKILL",
  SIGNAL_SIGTERM: "SIGTERM",
};

export async function sendSignal({ processIds }: OpenSandbox, request: Fields): Promise<Fields> {
  const signal = signals[String(request.signal)];
  if (signal === undefined)
    throw badField("signal", request.signal, Object.keys(signals).slice(2).join(" or "));
  await processIds.with(request.process, (process) => process.signal(signal));
  return {};
}

export async function update({ processIds }: OpenSandbox, request: Fields): Promise<Fields> {
  if (request.pty === undefined) return {};
  const cells = cellsOf(request.pty);
  await processIds.with(request.process, (process) => process.resize(cells));
  return {};
}

function cellsOf(pty: unknown): { cols: number; rows: number } {
  const { cols, rows } = (((pty ?? {}) as Fields).size ?? {}) as Fields;
  const isCells = (value: unknown): boolean => Number.isInteger(value) && Number(value) > 0;
  if (!isCells(cols) || !isCells(rows))
    throw badField("pty.size", { cols, rows }, '{"cols": 80, "rows": 24}');
  return { cols: Number(cols), rows: Number(rows) };
}

function inputOf(input: unknown): Uint8Array<ArrayBuffer> {
  const { stdin, pty } = (input ?? {}) as Fields;
  const text = stdin ?? pty ?? "";
  if (typeof text !== "string")
    throw badField("input", input, '{"stdin": "<base64>"} or {"pty": "<base64>"}');
  return new Uint8Array(Buffer.from(text, "base64"));
}

const isTexts = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((one) => typeof one === "string");
