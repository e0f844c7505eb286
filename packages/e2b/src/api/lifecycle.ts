import { limits } from "@cloche/protocol";
import type { SandboxInfo } from "@cloche/sdk";
import { E2bError, notOffered } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import { type ApiAnswer, type ApiCall, created, empty, flag, ok, wholeNumber } from "./api-call.ts";
import { egressOf } from "./network.ts";
import { access, detail, isPublic, stateOf } from "./sandbox-view.ts";
import { awaitRunning, awaitSuspended, named } from "./waiting.ts";

const seconds = { max: limits.timeoutSecondsMax };
const timeoutDefault = 15;
const mostForks = 100;

/** `GET /sandboxes/{id}`. */
export async function get(call: ApiCall): Promise<ApiAnswer> {
  return ok(detail(call.sandboxes, call.apiKey, await named(call)));
}

/** `DELETE /sandboxes/{id}`; also of a failed sandbox. */
export async function kill({ gateway, sandboxes, params }: ApiCall): Promise<ApiAnswer> {
  const { id } = await sandboxes.get(gateway, params.sandboxID ?? "");
  await gateway.deleteSandbox(id);
  sandboxes.forget(id);
  return empty;
}

/** `POST …/connect`, `/resume`: resumes a paused sandbox. For a running one the timeout can only be prolonged. */
export async function connect(call: ApiCall): Promise<ApiAnswer> {
  const { gateway, sandboxes, apiKey, body } = call;
  const timeout = wholeNumber(body, "timeout", seconds);
  if (flag(body, "memory") === false) throw notOffered("a resume that starts anew from the disk");
  let info = await named(call);
  const isPaused = stateOf(info) === "paused";
  if (isPaused) {
    if (info.state === "SANDBOX_STATE_SUSPENDING") info = await awaitSuspended(call, info);
    info = await gateway.resumeSandbox(info.id);
  }
  info = await awaitRunning(call, info);
  if (timeout !== undefined && (isPaused || endsBefore(info, timeout)))
    info = await gateway.updateSandbox({ id: info.id, timeout_seconds: Math.max(1, timeout) });
  const answer = access(sandboxes, apiKey, info);
  return isPaused ? created(answer) : ok(answer);
}

const endsBefore = ({ expires_at }: SandboxInfo, timeoutSeconds: number): boolean =>
  expires_at !== "" && Date.parse(expires_at) < Date.now() + timeoutSeconds * 1_000;

/** `POST …/timeout`: sets the timeout, counted from now. */
export async function setTimeout(call: ApiCall): Promise<ApiAnswer> {
  const { id } = await named(call);
  const timeout = wholeNumber(call.body, "timeout", seconds) ?? timeoutDefault;
  await call.gateway.updateSandbox({ id, timeout_seconds: Math.max(1, timeout) });
  return empty;
}

/** `POST …/refreshes`: prolongs the timeout. */
export async function refresh(call: ApiCall): Promise<ApiAnswer> {
  const info = await named(call);
  const duration = wholeNumber(call.body, "duration", { max: 3_600 }) ?? timeoutDefault;
  if (endsBefore(info, duration))
    await call.gateway.updateSandbox({ id: info.id, timeout_seconds: Math.max(1, duration) });
  return empty;
}

/** `POST …/pause`: answers once the sandbox is suspended; 409 if it already was. Without memory it later starts cold from its disk. */
export async function pause(call: ApiCall): Promise<ApiAnswer> {
  let info = await named(call);
  const memory = flag(call.body, "memory") ?? true;
  if (stateOf(info) === "paused")
    throw new E2bError("failed_precondition", `sandbox ${info.id} is already paused`);
  info = await awaitRunning(call, info);
  await awaitSuspended(call, await call.gateway.suspendSandbox(info.id, { memory }));
  return empty;
}

/** `POST …/fork`: makes clones of the sandbox's present state. */
export async function fork(call: ApiCall): Promise<ApiAnswer> {
  const { body } = call;
  const count = wholeNumber(body, "count", { min: 1, max: mostForks }) ?? 1;
  const timeout = Math.max(1, wholeNumber(body, "timeout", seconds) ?? timeoutDefault);
  const source = await named(call);
  const answer = await call.gateway.forkSandbox({
    source_sandbox_id: source.id,
    timeout_seconds: timeout,
    count,
  });
  return created(await Promise.all(answer.sandboxes.map((info) => forked(call, source, info))));
}

/** One entry of the answer: the fork, or its error. */
async function forked(call: ApiCall, source: SandboxInfo, made: SandboxInfo): Promise<Fields> {
  const { gateway, sandboxes, apiKey } = call;
  try {
    let info = await awaitRunning(call, made);
    // Forks inherit public ports in E2B, but not in Cloche.
    if (isPublic(source)) info = await gateway.updateSandbox({ id: made.id, public_ports: ["*"] });
    return { sandbox: access(sandboxes, apiKey, info) };
  } catch (thrown) {
    await gateway.deleteSandbox(made.id).catch(() => undefined);
    const { status, message } = E2bError.from(thrown);
    return { error: { code: status, message } };
  }
}

/** `PUT …/network`: replaces the rules. */
export async function setNetwork(call: ApiCall): Promise<ApiAnswer> {
  const { id } = await named(call);
  await call.gateway.updateSandbox({
    id,
    egress: egressOf(call.body, flag(call.body, "allow_internet_access")),
  });
  return empty;
}
