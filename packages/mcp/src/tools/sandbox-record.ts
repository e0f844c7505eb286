import type { Sandbox, SandboxInfo } from "@cloche/sdk";
import { z } from "zod";

/** A sandbox in answers of tools: the fields of the gateway's record that a model needs. */
export const sandboxRecord = z.object({
  id: z.string().describe("What every other tool takes as `sandbox`."),
  name: z.string(),
  state: z
    .enum(["creating", "running", "suspending", "suspended", "resuming", "deleting", "error"])
    .describe("Commands and files need `running`."),
  error_message: z
    .string()
    .describe("Why it is in `error`, or why the last suspend or resume failed; else empty."),
  created_at: z.string().describe("RFC 3339."),
  source_sandbox_id: z.string().describe("Of a fork: what it was forked from; else empty."),
  source_checkpoint_id: z.string(),
  cpus: z.number(),
  memory_mb: z.number(),
  disk_mb: z.number(),
  timeout_seconds: z.number().describe("0: it is never ended by itself."),
  expires_at: z.string().describe("When it is ended by itself; empty: never."),
});

type State = z.infer<typeof sandboxRecord>["state"];

export function recordOf(info: SandboxInfo): z.infer<typeof sandboxRecord> {
  return {
    id: info.id,
    name: info.name,
    state: info.state.replace("SANDBOX_STATE_", "").toLowerCase() as State,
    error_message: info.error_message,
    created_at: info.created_at,
    source_sandbox_id: info.source_sandbox_id,
    source_checkpoint_id: info.source_checkpoint_id,
    cpus: info.cpus,
    memory_mb: info.memory_mb,
    disk_mb: info.disk_mb,
    timeout_seconds: info.timeout_seconds,
    expires_at: info.expires_at,
  };
}

/** Waits until a new sandbox runs, because a create answers after 10 s in any state. */
export async function runningRecord(
  sandbox: Sandbox,
  options: { signal: AbortSignal; timeoutMs: number },
): Promise<z.infer<typeof sandboxRecord>> {
  if (sandbox.info.state !== "SANDBOX_STATE_RUNNING") await sandbox.waitFor("SANDBOX_STATE_RUNNING", options);
  return recordOf(sandbox.info);
}
