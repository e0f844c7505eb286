import { z } from "zod";
import { mcpLimits } from "../limits.ts";
import { checkpointField, present, sandboxField, tool, type Tool } from "../tool.ts";

const createCheckpoint = tool({
  name: "create_checkpoint",
  title: "Save a checkpoint",
  description:
    "Saves the whole disk of a sandbox at one instant, the store included, while it runs on; takes milliseconds. Use it " +
    "before a step that may break something: restore_checkpoint brings the disk back. Programs and memory are not in it; " +
    "fork_sandbox copies those.",
  effect: "adds",
  input: z.object({
    sandbox: sandboxField,
    name: z.string().min(1).max(128).optional().describe("Default: a generated one."),
  }),
  output: z.object({ checkpoint: z.string(), size_bytes: z.int() }),
  async run({ sandbox, name }, call) {
    const options = { ...present({ name }), signal: call.signal };
    const made = await (await call.sandbox(sandbox)).checkpoints.create(options);
    return { checkpoint: made.checkpoint_id, size_bytes: made.size_bytes };
  },
});

const listCheckpoints = tool({
  name: "list_checkpoints",
  title: "List checkpoints",
  description:
    "Checkpoints of one sandbox or of the whole team, also of deleted sandboxes. At most " +
    `${mcpLimits.checkpointsListed}; \`truncated\` says when there are more.`,
  effect: "reads",
  input: z.object({ sandbox: sandboxField.optional().describe("Only of this one. Default: the team's.") }),
  output: z.object({
    checkpoints: z.array(
      z.object({
        checkpoint: z.string().describe("Id, ckpt-…."),
        name: z.string(),
        sandbox: z.string(),
        created_at: z.string(),
        size_bytes: z.int(),
      }),
    ),
    truncated: z.boolean(),
  }),
  async run({ sandbox: nameOrId }, call) {
    const { cloche, signal } = call;
    // An unknown sandbox, or one of another team, would list nothing: throw `not_found` instead.
    const sandbox_id = nameOrId === undefined ? undefined : (await call.sandbox(nameOrId)).id;
    const all = await cloche.gateway.listCheckpoints(present({ sandbox_id }), { signal });
    const checkpoints = all.slice(0, mcpLimits.checkpointsListed).map((one) => ({
      checkpoint: one.id,
      name: one.name,
      sandbox: one.sandbox_id,
      created_at: one.created_at,
      size_bytes: one.size_bytes,
    }));
    return { checkpoints, truncated: checkpoints.length < all.length };
  },
});

const restoreCheckpoint = tool({
  name: "restore_checkpoint",
  title: "Restore a checkpoint",
  description:
    "Rewinds the whole disk of a sandbox to one of its own checkpoints: files and store written since are gone, running " +
    "programs are stopped, the services that ran then are started again. Make a checkpoint first where you may want to come " +
    "back. A failed restore leaves the sandbox as it was.",
  effect: "destroys-once",
  input: z.object({ sandbox: sandboxField, checkpoint: checkpointField }),
  output: z.object({
    restore_duration_ms: z.int(),
    started_services: z.array(z.string()),
    stopped_services: z.array(z.string()).describe("Ran before, and do not run now."),
    failed_services: z.array(z.string()),
  }),
  async run({ sandbox, checkpoint }, call) {
    using _progress = call.progress("the disk is rewound");
    const { restore_duration_ms, started_services, stopped_services, failed_services } = await (
      await call.sandbox(sandbox)
    ).restore(checkpoint, { signal: call.signal });
    return { restore_duration_ms, started_services, stopped_services, failed_services };
  },
});

const deleteCheckpoint = tool({
  name: "delete_checkpoint",
  title: "Delete a checkpoint",
  description: "Removes one of the team's checkpoints for good.",
  effect: "destroys-once",
  input: z.object({ checkpoint: checkpointField }),
  output: z.object({ deleted: z.literal(true), freed_bytes: z.int() }),
  async run({ checkpoint }, { cloche, signal }) {
    const { freed_bytes } = await cloche.gateway.deleteCheckpoint(checkpoint, { signal });
    return { deleted: true as const, freed_bytes };
  },
});

export const checkpointTools: readonly Tool[] = [
  createCheckpoint,
  listCheckpoints,
  restoreCheckpoint,
  deleteCheckpoint,
];
