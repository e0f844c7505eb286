import { z } from "zod";
import { mcpLimits } from "../limits.ts";
import { OutputWindow } from "../output-window.ts";
import {
  commandField,
  commandOf,
  dirField,
  envField,
  present,
  sandboxField,
  tool,
  userField,
} from "../tool.ts";

const streamBytes = z.int().describe("Of the whole stream, also where it was cut.");

export const exec = tool({
  name: "exec",
  title: "Run a command",
  description:
    "Runs a command in a sandbox and answers when it has ended, with its exit code and output. A non-zero exit code is an " +
    "answer, not an error. Files, installed packages and programs left in the background stay for the next call; the " +
    "working directory and exported variables do not. For servers and commands longer than a few minutes use " +
    "start_process. Output beyond `max_output_bytes` is cut in its middle (`stdout_truncated`): send it to a file and read " +
    "that with read_file. Cancelling the call kills the command.",
  effect: "destroys",
  openWorld: true,
  input: z.object({
    sandbox: sandboxField,
    command: commandField,
    dir: dirField,
    env: envField,
    user: userField,
    stdin: z.string().optional().describe("Text for standard input. Default: none."),
    timeout_seconds: z
      .number()
      .min(0.1)
      .max(mcpLimits.execTimeoutSecondsMax)
      .default(mcpLimits.execTimeoutSecondsDefault)
      .describe(
        `Kills the command after so many seconds, up to ${mcpLimits.execTimeoutSecondsMax}. Default ` +
          `${mcpLimits.execTimeoutSecondsDefault}.`,
      ),
    max_output_bytes: z
      .int()
      .min(2)
      .max(mcpLimits.execOutputBytesMax)
      .default(mcpLimits.execOutputBytesDefault)
      .describe(
        `Most bytes to answer of each stream, up to ${mcpLimits.execOutputBytesMax}. Default ` +
          `${mcpLimits.execOutputBytesDefault}.`,
      ),
  }),
  output: z.object({
    exit_code: z.int().describe("127: no such program; 128 + n: ended by signal n."),
    stdout: z.string(),
    stderr: z.string(),
    timed_out: z.boolean().describe("It was killed after `timeout_seconds`."),
    out_of_memory: z.boolean().describe("A program was killed because the sandbox's memory was used up."),
    duration_ms: z.int(),
    stdout_bytes: streamBytes,
    stderr_bytes: streamBytes,
    stdout_truncated: z.boolean().describe("The middle was left out, at the note in it."),
    stderr_truncated: z.boolean(),
  }),
  async run(input, call) {
    const { sandbox, command, timeout_seconds, max_output_bytes, ...rest } = input;
    using progress = call.progress("the command runs");
    const windows = {
      stdout: new OutputWindow(max_output_bytes),
      stderr: new OutputWindow(max_output_bytes),
    };
    const options = { ...present(rest), timeout_ms: Math.ceil(timeout_seconds * 1_000), signal: call.signal };
    const events = (await call.sandbox(sandbox)).execStreamBytes(commandOf(command), options);
    for await (const event of events) {
      if (event.type !== "exit") {
        windows[event.type].add(event.data);
        progress.report(lastLine(event.data));
        continue;
      }
      const stdout = windows.stdout.read();
      const stderr = windows.stderr.read();
      return {
        exit_code: event.exit_code,
        stdout: stdout.text,
        stderr: stderr.text,
        timed_out: event.timed_out,
        out_of_memory: event.out_of_memory ?? false,
        duration_ms: event.duration_ms,
        stdout_bytes: stdout.bytes,
        stderr_bytes: stderr.bytes,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
      };
    }
    throw new Error("the stream of an exec ended without its exit");
  },
});

/** The last line that is not empty. */
function lastLine(bytes: Uint8Array): string {
  const text = Buffer.from(bytes.subarray(-4 * mcpLimits.progressMessageCharacters)).toString("utf8");
  return (
    text
      .trimEnd()
      .split(/[\r\n]/)
      .at(-1) || "the command runs"
  );
}
