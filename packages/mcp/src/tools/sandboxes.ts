import { z } from "zod";
import { defaults, isSandboxId } from "@cloche/protocol";
import { mcpLimits } from "../limits.ts";
import { checkpointField, envField, present, sandboxField, tool, type Tool } from "../tool.ts";
import { recordOf, runningRecord, sandboxRecord } from "./sandbox-record.ts";

const timeoutField = z
  .int()
  .min(0)
  .max(31_536_000)
  .optional()
  .describe("Seconds after which it is ended by itself, up to a year. Default 0: never.");

const createSandbox = tool({
  name: "create_sandbox",
  title: "Create a sandbox",
  description:
    "Makes a new isolated Linux machine (Debian, root, its own disk and network) and answers when it runs, mostly within a " +
    "second. Use one sandbox for one task and delete it when the task is done. To get several copies of a machine that is " +
    "already set up, use fork_sandbox instead: it takes files and running programs along.",
  effect: "adds",
  input: z.object({
    name: z
      .string()
      .min(1)
      .max(64)
      .optional()
      .describe("1 to 64 printable characters. Default: a generated one."),
    checkpoint: checkpointField
      .optional()
      .describe("Begin with the disk of this checkpoint instead of an empty machine."),
    env: envField.describe('Environment variables of every command in it, such as ["DEBUG=1"].'),
    cpus: z.number().min(0.1).max(64).optional().describe(`Processors. Default ${defaults.cpus}.`),
    memory_mb: z
      .int()
      .min(128)
      .max(262_144)
      .optional()
      .describe(`Memory in MiB. Default ${defaults.memoryMb}.`),
    disk_mb: z
      .int()
      .min(1_024)
      .max(1_048_576)
      .optional()
      .describe(`Disk in MiB. Default ${defaults.diskMb}.`),
    network: z
      .enum(["open", "none"])
      .optional()
      .describe("`open` (default): it reaches public addresses. `none`: it reaches nothing."),
    timeout_seconds: timeoutField,
    on_timeout: z.enum(["delete", "suspend"]).optional().describe("What ends it then. Default delete."),
  }),
  output: sandboxRecord,
  async run({ checkpoint, network, ...fields }, { cloche, signal, progress }) {
    using _progress = progress("the machine is made");
    const egress = network === undefined ? undefined : { mode: network };
    const request = present({ ...fields, checkpoint_id: checkpoint, egress });
    const sandbox = await cloche.create(request, { signal });
    try {
      return await runningRecord(sandbox, { signal, timeoutMs: mcpLimits.stateWaitMs });
    } catch (error) {
      // The caller does not know the new sandbox, so it is deleted.
      await sandbox.delete().catch(() => undefined);
      throw error;
    }
  },
});

const listSandboxes = tool({
  name: "list_sandboxes",
  title: "List sandboxes",
  description:
    "The team's sandboxes, newest first, with their states. Use it to find a sandbox made earlier, and before you make " +
    `another. At most ${mcpLimits.sandboxesListed}; \`truncated\` says when there are more.`,
  effect: "reads",
  input: z.object({
    name: z.string().min(1).max(64).optional().describe("Only those whose name begins with it."),
  }),
  output: z.object({ sandboxes: z.array(sandboxRecord), truncated: z.boolean() }),
  async run({ name }, { cloche, signal }) {
    const request = present({ name, page_size: mcpLimits.sandboxesListed });
    const page = await cloche.gateway.listSandboxes(request, { signal });
    return { sandboxes: page.sandboxes.map(recordOf), truncated: page.next_page_token !== "" };
  },
});

const getSandbox = tool({
  name: "get_sandbox",
  title: "Look at a sandbox",
  description: "State, size and expiry of one sandbox.",
  effect: "reads",
  input: z.object({ sandbox: sandboxField }),
  output: sandboxRecord,
  async run({ sandbox }, call) {
    return recordOf((await call.sandbox(sandbox)).info);
  },
});

const deleteSandbox = tool({
  name: "delete_sandbox",
  title: "Delete a sandbox",
  description:
    "Ends a sandbox and its disk for good; its checkpoints stay. Delete what you made once you have what you need from it.",
  effect: "destroys-once",
  input: z.object({ sandbox: sandboxField }),
  output: z.object({ deleted: z.literal(true), sandbox: z.string() }),
  async run({ sandbox: nameOrId }, call) {
    // An id is not looked up: deleting a sandbox twice is no error.
    const sandbox = isSandboxId(nameOrId) ? nameOrId : (await call.sandbox(nameOrId)).id;
    await call.cloche.gateway.deleteSandbox(sandbox, { signal: call.signal });
    return { deleted: true as const, sandbox };
  },
});

const suspendSandbox = tool({
  name: "suspend_sandbox",
  title: "Suspend a sandbox",
  description:
    "Saves memory and disk and frees the machine: programs go on where they were after resume_sandbox, minutes or weeks " +
    "later. Use it for work that waits for somebody. Answers when it is suspended.",
  effect: "adds-once",
  input: z.object({ sandbox: sandboxField }),
  output: sandboxRecord,
  async run({ sandbox: id }, { sandbox: find, signal, progress }) {
    using _progress = progress("memory and disk are saved");
    const sandbox = await find(id);
    await sandbox.suspend({ signal });
    return recordOf(
      await sandbox.waitFor("SANDBOX_STATE_SUSPENDED", { signal, timeoutMs: mcpLimits.stateWaitMs }),
    );
  },
});

const resumeSandbox = tool({
  name: "resume_sandbox",
  title: "Resume a sandbox",
  description: "Wakes a suspended sandbox; its programs go on where they were. Answers when it runs.",
  effect: "adds-once",
  input: z.object({ sandbox: sandboxField }),
  output: sandboxRecord,
  async run({ sandbox: id }, { sandbox: find, signal, progress }) {
    using _progress = progress("the machine is resumed");
    const sandbox = await find(id);
    await sandbox.resume({ signal });
    return runningRecord(sandbox, { signal, timeoutMs: mcpLimits.stateWaitMs });
  },
});

export const sandboxTools: readonly Tool[] = [
  createSandbox,
  listSandboxes,
  getSandbox,
  deleteSandbox,
  suspendSandbox,
  resumeSandbox,
];
