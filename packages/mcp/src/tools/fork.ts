import type { Sandbox } from "@cloche/sdk";
import { z } from "zod";
import { mcpLimits } from "../limits.ts";
import { type Call, checkpointField, present, sandboxField, tool } from "../tool.ts";
import { runningRecord, sandboxRecord } from "./sandbox-record.ts";

export const forkSandbox = tool({
  name: "fork_sandbox",
  title: "Fork a sandbox",
  description:
    "Clones a running sandbox as it is now, files, memory and running programs included; the source runs on unchanged. " +
    "Use it to try several ways from one state side by side: set the machine up once, fork it with `count`, try one way in " +
    "each fork, keep the best and delete the others. Takes about a second. All forks are of one instant, and all are made " +
    "or none.",
  effect: "adds",
  input: z.object({
    sandbox: sandboxField.describe("The sandbox to clone; it must be running."),
    count: z
      .int()
      .min(1)
      .max(mcpLimits.forks)
      .default(1)
      .describe(`How many forks, 1 to ${mcpLimits.forks}. Default 1.`),
    name: z
      .string()
      .min(1)
      .max(60)
      .optional()
      .describe("Name of the fork; of several, `-1`, `-2`, … is added. Default: generated."),
    checkpoint: checkpointField
      .optional()
      .describe("Begin with the disk of this checkpoint of the source instead of its running state."),
    timeout_seconds: z
      .int()
      .min(0)
      .max(31_536_000)
      .optional()
      .describe("Seconds after which a fork is deleted. Default 0: never."),
  }),
  output: z.object({ forks: z.array(sandboxRecord) }),
  async run({ sandbox: id, count, name, checkpoint, timeout_seconds }, call) {
    using _progress = call.progress("the machine is cloned");
    const source = await call.sandbox(id);
    // A fork needs the checkpoint in storage, and its upload may still be under way.
    if (checkpoint !== undefined)
      await source.checkpoints.wait(checkpoint, { timeout_secs: 120, signal: call.signal });
    const request = present({ name, checkpoint_id: checkpoint, timeout_seconds });
    const options = { signal: call.signal };
    const forks =
      count === 1 ? [await source.fork(request, options)] : await source.forkMany(count, request, options);
    try {
      return { forks: await Promise.all(forks.map((fork) => running(fork, call))) };
    } catch (error) {
      await Promise.allSettled(forks.map((fork) => fork.delete()));
      throw error;
    }
  },
});

const running = (fork: Sandbox, { signal }: Call): ReturnType<typeof runningRecord> =>
  runningRecord(fork, { signal, timeoutMs: mcpLimits.stateWaitMs });
