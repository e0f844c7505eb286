import type { ProcessInfo, SandboxProcess } from "@cloche/sdk";
import { ClocheApiError } from "@cloche/sdk";
import { z } from "zod";
import { mcpLimits } from "../limits.ts";
import { readBounded } from "../read-bounded.ts";
import {
  type Call,
  commandField,
  commandOf,
  dirField,
  envField,
  maxBytesField,
  present,
  processField,
  sandboxField,
  tool,
  type Tool,
  userField,
} from "../tool.ts";

const processRecord = z.object({
  process_id: z.string().describe("What the other process tools take as `process`."),
  status: z.enum(["running", "exited"]),
  exit_code: z.int().nullable().describe("Null while it runs."),
  signal: z.string().nullable().describe("Name of the signal that ended it."),
  ended_by: z
    .string()
    .nullable()
    .describe("exit, signal, timeout, delete, restore, machine_restart or out_of_memory."),
  kind: z.string().describe("process, exec, service or container."),
  cmd: z.array(z.string()),
  tag: z.string(),
  stdin: z.enum(["none", "open", "closed"]),
  started_at: z.string(),
  ended_at: z.string().nullable(),
  stdout_bytes: z.int().describe("Written so far."),
  stderr_bytes: z.int(),
});

function recordOf(info: ProcessInfo): z.infer<typeof processRecord> {
  const { process_id, status, exit_code, signal, ended_by, kind, cmd, tag, stdin } = info;
  const { started_at, ended_at, stdout_bytes, stderr_bytes } = info;
  const fields = { process_id, status, exit_code, signal, ended_by, kind, cmd, tag, stdin };
  return { ...fields, started_at, ended_at, stdout_bytes, stderr_bytes };
}

const find = async ({ sandbox, signal }: Call, id: string, process: string): Promise<SandboxProcess> =>
  (await sandbox(id)).processes.get(process, { signal });

const startProcess = tool({
  name: "start_process",
  title: "Start a process",
  description:
    "Starts a command that outlives this call and answers at once: servers, watchers, long builds, programs that read " +
    "input. Its output is kept (the newest 1 MiB of each stream): read_process_output reads it, wait_for_process waits for " +
    "its end, write_process_input types into it, signal_process ends it. A server that must come back after a restore or a " +
    "cold start is better a service: set_service.",
  effect: "destroys",
  openWorld: true,
  input: z.object({
    sandbox: sandboxField,
    command: commandField,
    dir: dirField,
    env: envField,
    user: userField,
    stdin: z
      .enum(["none", "open"])
      .default("none")
      .describe("`open`: write_process_input can write to it. Default none."),
    tag: z.string().max(256).optional().describe("Free text to know it by, at most 256 bytes."),
    timeout_seconds: z
      .number()
      .min(0.1)
      .optional()
      .describe("Kills it after so many seconds. Default: never."),
  }),
  output: processRecord,
  async run({ sandbox, command, timeout_seconds, ...rest }, call) {
    const timeout_ms = timeout_seconds === undefined ? undefined : Math.ceil(timeout_seconds * 1_000);
    const options = { ...present({ ...rest, timeout_ms }), signal: call.signal };
    const processes = (await call.sandbox(sandbox)).processes;
    return recordOf((await processes.start(commandOf(command), options)).info);
  },
});

const listProcesses = tool({
  name: "list_processes",
  title: "List processes",
  description:
    "Processes started with start_process, running execs, services and containers of a sandbox, oldest first; ended ones for " +
    `an hour. At most ${mcpLimits.processesListed}, the newest; \`truncated\` says when older ones were left out.`,
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    status: z.enum(["running", "exited"]).optional().describe("Only these. Default: both."),
  }),
  output: z.object({ processes: z.array(processRecord), truncated: z.boolean() }),
  async run({ sandbox, status }, call) {
    const all = await (await call.sandbox(sandbox)).processes.list({
      ...present({ status }),
      signal: call.signal,
    });
    const processes = all.slice(-mcpLimits.processesListed).map(recordOf);
    return { processes, truncated: processes.length < all.length };
  },
});

const readOutput = tool({
  name: "read_process_output",
  title: "Read a process's output",
  description:
    "What a process has written to one stream. Without `after` the newest `max_bytes`; with `after` what follows that offset, " +
    "so pass the last answer's `next` to go on where you were. `lost_bytes`: so many between `after` and `start` are no " +
    "longer kept.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    process: processField,
    stream: z.enum(["stdout", "stderr"]).default("stdout").describe("Default stdout."),
    after: z
      .int()
      .min(0)
      .optional()
      .describe("Offset in bytes from the beginning of the stream. Default: near its end."),
    max_bytes: maxBytesField,
  }),
  output: z.object({
    text: z.string().describe("Bytes that are no UTF-8 are U+FFFD."),
    start: z.int().describe("Offset of the first byte of `text`."),
    next: z.int().describe("Pass as `after` to read on."),
    written: z.int().describe("Bytes written to the stream so far."),
    lost_bytes: z.int(),
    status: z.enum(["running", "exited"]),
    exit_code: z.int().nullable(),
  }),
  async run({ sandbox: id, process: processId, stream, after, max_bytes }, call) {
    const sandbox = await call.sandbox(id);
    const { info } = await sandbox.processes.get(processId, { signal: call.signal });
    const written = stream === "stdout" ? info.stdout_bytes : info.stderr_bytes;
    const asked = after ?? Math.max(0, written - max_bytes);
    const path = `/v1/processes/${processId}/output`;
    const query = { stream, after: asked };
    const response = await sandbox.dataPlane.request("GET", path, { query, signal: call.signal });
    const { bytes } = await readBounded(response.body ?? new Blob([]).stream(), max_bytes);
    const start = Number(response.headers.get("x-output-start") ?? asked);
    const text = Buffer.from(bytes).toString("utf8");
    const { status, exit_code } = info;
    const lost_bytes = Math.max(0, start - asked);
    return { text, start, next: start + bytes.length, written, lost_bytes, status, exit_code };
  },
});

const writeInput = tool({
  name: "write_process_input",
  title: "Write to a process's input",
  description:
    "Types text into a process that was started with `stdin: open`. End lines with \\n yourself. `end` closes its input " +
    "afterwards, as Ctrl-D does.",
  effect: "adds",
  input: z.object({
    sandbox: sandboxField,
    process: processField,
    text: z.string().max(1_048_576).default("").describe("At most 1,048,576 characters."),
    end: z.boolean().default(false).describe("Close standard input afterwards. Default false."),
  }),
  output: z.object({ written_bytes: z.int(), ended: z.boolean() }),
  async run({ sandbox, process: id, text, end }, call) {
    const process = await find(call, sandbox, id);
    const written_bytes = text === "" ? 0 : await process.write(text, { signal: call.signal });
    if (end) await process.endInput({ signal: call.signal });
    return { written_bytes, ended: end };
  },
});

const signalProcess = tool({
  name: "signal_process",
  title: "Signal a process",
  description:
    "Sends a signal to a process and its group: SIGINT as Ctrl-C, SIGTERM to end it, SIGKILL where it does not listen. " +
    "wait_for_process answers when it has ended.",
  effect: "destroys",
  input: z.object({
    sandbox: sandboxField,
    process: processField,
    signal: z
      .union([z.string().regex(/^SIG[A-Z0-9+-]+$/), z.int().min(1).max(64)])
      .default("SIGTERM")
      .describe("Name or number. Default SIGTERM."),
  }),
  output: processRecord,
  async run({ sandbox, process, signal }, call) {
    return recordOf(await (await find(call, sandbox, process)).signal(signal, { signal: call.signal }));
  },
});

const waitForProcess = tool({
  name: "wait_for_process",
  title: "Wait for a process",
  description:
    "Waits until a process has ended, at most `timeout_seconds`. `ended` false: it still runs, which is no error. Cancelling " +
    "the wait leaves the process alone.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    process: processField,
    timeout_seconds: z
      .int()
      .min(0)
      .max(mcpLimits.waitSecondsMax)
      .default(mcpLimits.waitSecondsDefault)
      .describe(`Up to ${mcpLimits.waitSecondsMax}. Default ${mcpLimits.waitSecondsDefault}.`),
  }),
  output: z.object({ ended: z.boolean(), process: processRecord }),
  async run({ sandbox, process: id, timeout_seconds }, call) {
    using _progress = call.progress("the process runs");
    const process = await find(call, sandbox, id);
    try {
      await process.wait({ timeout_secs: timeout_seconds, signal: call.signal });
    } catch (error) {
      if (!(error instanceof ClocheApiError && error.code === "deadline_exceeded")) throw error;
      await process.refresh({ signal: call.signal });
    }
    return { ended: process.info.status === "exited", process: recordOf(process.info) };
  },
});

export const processTools: readonly Tool[] = [
  startProcess,
  listProcesses,
  readOutput,
  writeInput,
  signalProcess,
  waitForProcess,
];
