/**
 * The data plane's checkpoint and restore routes (spec/contract.md, Data plane: checkpoints), which the host answers
 * because it drives them anyway. The edge passes the request on unread; the token is verified here.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import {
  type Clock,
  HeldBytes,
  listenerBounds,
  logIds,
  readJsonBody,
  sendError,
  sendJson,
  withRequestIds,
  bearerToken,
  TokenVerifier,
} from "@cloche/base";
import {
  allowedMethods,
  type CheckpointCreated,
  type CheckpointDeleted,
  type CheckpointList,
  type CheckpointRecord,
  type CheckpointWaitResponse,
  checkDataPlaneFields,
  ClocheError,
  dataPlaneRouteName,
  generateName,
  humanBytes,
  internalHeaders,
  isDisplayName,
  limits,
  listPositionText,
  parseListPosition,
  type RestoreResponse,
  traceparentOf,
} from "@cloche/protocol";
import type { CheckpointInfo } from "../checkpoint/catalogue.ts";
import { type CheckpointParts, takeCheckpoint } from "../operations/checkpoint-machine.ts";
import { ownCheckpoint, restoreCheckpoint } from "../operations/restore-checkpoint.ts";
import { publicError } from "./connect-errors.ts";
import { type DataPlaneCaller, type AuditedCall, noteAuditEvent } from "./audit-events.ts";

export interface DataPlaneContext {
  sandboxId: string;
  requestId: string;
}
export type HostDataPlane = (
  request: IncomingMessage,
  response: ServerResponse,
  context: DataPlaneContext,
) => void;

const pollMsMin = 10;
const pollMsMax = 60_000;

export interface HostDataPlaneParts extends CheckpointParts {
  /** Throws while nothing may be changed on this host; default: never throws. */
  requireMayChange?: () => void;
  clock: Clock;
  randomBytes: (length: number) => Uint8Array;
}

type Body = Record<string, unknown>;
interface Call {
  parts: HostDataPlaneParts;
  sandboxId: string;
  body: Body;
  query: URLSearchParams;
  /** Path segment after /v1/checkpoint/. */
  id: string;
  /** Aborted when the client is gone. */
  signal: AbortSignal;
}
type Handler = (call: Call) => Promise<unknown>;

const routes: Record<string, Handler> = {
  "POST /v1/checkpoint": create,
  "GET /v1/checkpoint/list": list,
  "POST /v1/checkpoint/wait": wait,
  "DELETE /v1/checkpoint/:id": remove,
  "POST /v1/restore": restore,
};

export function hostDataPlane(parts: HostDataPlaneParts): HostDataPlane {
  const { machines, agents, clock, log } = parts;
  const verifier = new TokenVerifier(
    () => agents.keys.current,
    () => clock.nowMs(),
  );
  const held = new HeldBytes();
  return (request, response, { sandboxId, requestId }) => {
    const began = performance.now();
    const gone = new AbortController();
    response.once("close", () => gone.abort(new ClocheError("canceled", "the client went away")));
    response.setHeader(internalHeaders.requestId, requestId);
    const answer = async (): Promise<void> => {
      const { authorization } = request.headers;
      const claims = verifier.verify(bearerToken(authorization), sandboxId);
      const { handler, id } = route(request);
      const { teamId } = machines.get(sandboxId);
      const hold = held.hold([
        { key: teamId, most: listenerBounds.teamBytes },
        { key: "", most: listenerBounds.processBytes },
      ]);
      const body =
        request.method === "POST"
          ? await readJsonBody(request, { maxBytes: limits.checkpointBodyBytes, hold }).finally(hold.release)
          : {};
      checkDataPlaneFields(request, body);
      const query = new URLSearchParams((request.url ?? "").split("?")[1] ?? "");
      if (request.method !== "GET") parts.requireMayChange?.();
      const call = { parts, sandboxId, body, query, id, signal: gone.signal };
      const caller = { teamId, actor: `token:${claims.jti}`, requestId };
      sendJson(response, 200, await audited(caller, handler, call));
    };
    const ids = { requestId, traceparent: traceparentOf(request.headers["traceparent"]) };
    void withRequestIds(ids, answer).catch((thrown: unknown) => {
      const error = sendError(response, publicError(thrown));
      const ms = Math.round(performance.now() - began);
      const fields = { ...logIds(ids), sandbox_id: sandboxId, path: request.url, ms };
      if (error.code === "internal") log.error({ ...fields, err: thrown }, "request failed");
      else log.debug({ ...fields, code: error.code }, "request refused");
    });
  };
}

/** Notes calls that change something, refused or done, in the team's audit log before they are answered. */
async function audited(caller: DataPlaneCaller, handler: Handler, call: Call): Promise<unknown> {
  const audited = auditedCalls.get(handler);
  if (audited === undefined) return handler(call);
  try {
    const answer = await handler(call);
    noteAuditEvent(call.parts, caller, audited(call, answer), "ok");
    return answer;
  } catch (error) {
    noteAuditEvent(call.parts, caller, audited(call, {}), publicError(error).code);
    throw error;
  }
}

const auditedCalls = new Map<Handler, (call: Call, answer: unknown) => AuditedCall>([
  [
    create,
    ({ sandboxId }, answer) => {
      const { checkpoint_id: id } = answer as Partial<CheckpointCreated>;
      return { action: "checkpoint.create", subject: id ?? sandboxId, detail: `of sandbox ${sandboxId}` };
    },
  ],
  [
    remove,
    ({ id, sandboxId }) => ({ action: "checkpoint.delete", subject: id, detail: `of sandbox ${sandboxId}` }),
  ],
  [
    restore,
    ({ body, sandboxId }) => ({
      action: "sandbox.restore",
      subject: sandboxId,
      detail: `from checkpoint ${String(body["checkpoint_id"])}`,
    }),
  ],
]);

function route(request: IncomingMessage): { handler: Handler; id: string } {
  const path = (request.url ?? "").split("?")[0] ?? "";
  const handler = routes[dataPlaneRouteName(request.method ?? "", path) ?? ""];
  if (handler) return { handler, id: path.slice("/v1/checkpoint/".length) };
  const allow = allowedMethods(path);
  if (allow.length > 0) throw ClocheError.methodNotAllowed(request.method, allow);
  throw new ClocheError("not_found", `there is no ${path.slice(0, 200)} in the data plane`);
}

async function create({ parts, sandboxId, body }: Call): Promise<CheckpointCreated> {
  const name = body["name"] ?? "";
  if (typeof name !== "string" || (name !== "" && !isDisplayName(name, limits.checkpointNameLength)))
    throw new ClocheError(
      "invalid_argument",
      `name must be a string of 1 to ${limits.checkpointNameLength} printable characters`,
    );
  const { info, copyMs } = await takeCheckpoint(parts, sandboxId, name || generateName(parts.randomBytes));
  const duration = Math.round(copyMs);
  return { checkpoint_id: info.id, ok: true, size_bytes: info.size_bytes, copy_duration_ms: duration };
}

async function list({ parts, sandboxId, query }: Call): Promise<CheckpointList> {
  const { teamId } = parts.machines.get(sandboxId);
  const cursor = query.get("cursor") ?? "";
  const most = limits.unpagedList;
  const limit = integer({ limit: wholeNumber(query.get("limit")) }, "limit", most, 1, most);
  const after = cursor === "" ? undefined : parseListPosition("cursor", cursor);
  const { checkpoints, next } = await parts.checkpoints.page(teamId, sandboxId, { limit, after });
  return { checkpoints: checkpoints.map(publicRecord), cursor: next ? listPositionText(next) : "" };
}

/** The number in `text`; any other text unchanged, to be refused by the caller. */
const wholeNumber = (text: string | null): unknown =>
  text !== null && /^\d{1,9}$/.test(text) ? Number(text) : (text ?? undefined);

export const publicRecord = (info: CheckpointInfo): CheckpointRecord => ({
  id: info.id,
  name: info.name,
  created_at: info.created_at,
  size_bytes: info.size_bytes,
  size_human: humanBytes(info.size_bytes),
  visible: info.visible,
});

/** An id that does not become visible, also an invented one, ends in 408. */
async function wait({ parts, sandboxId, body, signal }: Call): Promise<CheckpointWaitResponse> {
  const id = checkpointIdOf(body);
  const pollMs = integer(body, "poll_interval_ms", limits.checkpointWaitPollMs, pollMsMin, pollMsMax);
  const most = limits.checkpointWaitTimeoutMaxSeconds;
  const timeoutMs = integer(body, "timeout_secs", limits.checkpointWaitTimeoutSeconds, 0, most) * 1_000;
  const { clock } = parts;
  const began = clock.monotonicMs();
  // The catalogue calls back, so that a short poll interval costs nothing; `attempts` is what polling would have needed.
  const attempts = (waitedMs: number): number => 1 + Math.floor(waitedMs / pollMs);
  const isThere = await untilVisible(parts, sandboxId, id, timeoutMs, signal);
  const waitedMs = Math.round(clock.monotonicMs() - began);
  if (isThere) return { visible: true, ok: true, waited_ms: waitedMs, attempts: attempts(waitedMs) };
  throw new ClocheError(
    "deadline_exceeded",
    `checkpoint ${JSON.stringify(id.slice(0, 100))} was not visible in storage within ${timeoutMs / 1_000} s; its upload goes on: wait again`,
    { details: [{ visible: false, waited_ms: waitedMs, attempts: attempts(waitedMs) }] },
  );
}

/** False: not visible in time. Rejects with the signal's reason when the client is gone. */
async function untilVisible(
  parts: HostDataPlaneParts,
  sandboxId: string,
  id: string,
  timeoutMs: number,
  gone: AbortSignal,
): Promise<boolean> {
  if (await isVisible(parts, sandboxId, id)) return true;
  const over = new AbortController();
  const { teamId } = parts.machines.get(sandboxId);
  const forget = parts.checkpoints.onceVisible(teamId, id, () => over.abort());
  try {
    await parts.clock.sleep(timeoutMs, AbortSignal.any([over.signal, gone]));
  } catch (error) {
    if (!over.signal.aborted) throw error;
  } finally {
    forget();
  }
  return await isVisible(parts, sandboxId, id);
}

async function isVisible(parts: CheckpointParts, sandboxId: string, id: string): Promise<boolean> {
  try {
    return (await ownCheckpoint(parts, sandboxId, id)).visible;
  } catch {
    return false;
  }
}

async function remove({ parts, sandboxId, id }: Call): Promise<CheckpointDeleted> {
  const { team_id } = await ownCheckpoint(parts, sandboxId, id);
  return { ok: true, freed_bytes: await parts.checkpoints.delete(team_id, id) };
}

async function restore({ parts, sandboxId, body }: Call): Promise<RestoreResponse> {
  const result = await restoreCheckpoint(parts, sandboxId, checkpointIdOf(body));
  return {
    ok: true,
    restore_duration_ms: Math.round(result.durationMs),
    started_services: result.started,
    stopped_services: result.stopped,
    failed_services: result.failed,
  };
}

function checkpointIdOf(body: Body): string {
  const id = body["checkpoint_id"];
  if (typeof id === "string" && id !== "") return id;
  throw new ClocheError("invalid_argument", "checkpoint_id is required: a string such as ckpt-…");
}

function integer(body: Body, name: string, fallback: number, min: number, max: number): number {
  const value = body[name] ?? fallback;
  if (typeof value === "number" && Number.isInteger(value) && value >= min && value <= max) return value;
  throw new ClocheError("invalid_argument", `${name} must be a whole number from ${min} to ${max}`);
}
