import { Sandbox, type SandboxInfo } from "@cloche/sdk";
import { stateOf } from "./sandbox-view.ts";
import { noSandbox } from "../e2b-error.ts";
import type { ApiCall } from "./api-call.ts";

/** E2B's clients wait a minute for an answer. */
const waitMs = 55_000;

export const awaitRunning = (call: ApiCall, info: SandboxInfo): Promise<SandboxInfo> =>
  awaitState(call, info, "SANDBOX_STATE_RUNNING");
export const awaitSuspended = (call: ApiCall, info: SandboxInfo): Promise<SandboxInfo> =>
  awaitState(call, info, "SANDBOX_STATE_SUSPENDED");

async function awaitState(
  { gateway, sandboxes }: ApiCall,
  info: SandboxInfo,
  state: SandboxInfo["state"],
): Promise<SandboxInfo> {
  if (info.state === state) return info;
  const sandbox = new Sandbox(gateway, { fetch: sandboxes.fetch, wrapStoreValues: false }, info);
  return sandbox.waitFor(state, { timeoutMs: waitMs });
}

/** The sandbox in the path, if E2B has a state for it. */
export async function named({ gateway, sandboxes, params }: ApiCall): Promise<SandboxInfo> {
  const info = await sandboxes.get(gateway, params.sandboxID ?? "");
  if (stateOf(info) === undefined) throw noSandbox(info.id);
  return info;
}
