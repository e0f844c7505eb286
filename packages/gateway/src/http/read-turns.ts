/**
 * Which calls read much: lists, audit entries, usage. They share the process's thread and its database, so a team has a
 * few of them in work at once, and the others wait in line. How many wait is bounded by the calls that a team may have
 * under way (call-limits.ts).
 */
import type { Interceptor } from "@connectrpc/connect";
import { listenerBounds, TeamTurns } from "@cloche/base";
import { SandboxService } from "@cloche/protocol/public";
import { gatewayLimits } from "../limits.ts";
import { callerKey } from "../rpc/caller.ts";
import { callKey } from "./open-services.ts";

/** Calls that read much wait for their team's turn, and keep it until the answer is made (CallUnderWay.endTurn). */
export function readInTurn(): Interceptor {
  const turns = new TeamTurns(listenerBounds.readsOfTeam);
  return (next) => async (request) => {
    const { method, message, signal, contextValues } = request;
    const caller = contextValues.get(callerKey);
    if (!request.stream && caller !== undefined && readsMuch(method.name, message))
      contextValues.get(callKey).endTurn = await turns.enter(caller.teamId, signal);
    return next(request);
  };
}

/** Whether a call reads much. A short page waits for nobody: other parts of the service check keys with one. */
export function readsMuch(method: string, message: object): boolean {
  if (!method.startsWith("List") && method !== SandboxService.method.getUsage.name) return false;
  const { pageSize = 0 } = message as { pageSize?: number };
  return pageSize < 1 || pageSize > gatewayLimits.shortPage;
}
