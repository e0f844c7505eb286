/** cloche.public.v1.SandboxService (spec/contract.md, Gateway). */
import type { Clock, Log } from "@cloche/base";
import {
  ClocheError,
  isCheckpointId,
  isSandboxId,
  limits,
  listPositionText,
  parseListPosition,
  portLinkPath,
  type RandomBytes,
} from "@cloche/protocol";
import type { SandboxService } from "@cloche/protocol/public";
import { CreateSandboxRequestSchema, ForkSandboxRequestSchema, SandboxState } from "@cloche/protocol/public";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { Database } from "../database/database.ts";
import { isDurable, type SandboxRecord } from "../database/sandbox-record.ts";
import type { Caller } from "../lifecycle/audit-log.ts";
import type { Fleet } from "../hosts/fleet.ts";
import { type CallContext, egressOf } from "../hosts/host-calls.ts";
import { hasMachine } from "../lifecycle/decide.ts";
import type { SandboxSettings } from "../lifecycle/lifecycle.ts";
import { gatewayLimits } from "../limits.ts";
import { linkTokenHash } from "../routes/route-service.ts";
import type { TeamCheckpoints } from "../storage/team-checkpoints.ts";
import { listAuditEntries } from "./audit.ts";
import { callerOf } from "./caller.ts";
import {
  checkpointEvery,
  displayName,
  egress,
  metadata,
  namePrefix,
  onHostLoss,
  onTimeout,
  pageSizeOf,
  ports,
  refuse,
  sandboxOrder,
  userPort,
  wholeWithin,
} from "./fields.ts";
import { callKey, Idempotency } from "./idempotency.ts";
import { NewSandboxes, type NewSandboxesDependencies } from "./new-sandboxes.ts";
import { decodePageToken, encodePageToken } from "./page-token.ts";
import { fittingPage } from "./page-bytes.ts";
import { sandboxPage } from "./sandbox-page.ts";
import {
  checkpointMessage,
  type Domains,
  egressMessage,
  metricsMessage,
  sandboxDomain,
  sandboxMessage,
  stateName,
} from "./sandbox-message.ts";
import { getUsage } from "./usage.ts";

export interface SandboxServiceDependencies
  extends Omit<NewSandboxesDependencies, "idempotency" | "message"> {
  database: Database;
  fleet: Fleet;
  checkpoints: TeamCheckpoints;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  domains: Domains;
  /** True: hosts put suspended sandboxes into storage. */
  isCluster: boolean;
}

// oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
export function sandboxService(needs: SandboxServiceDependencies): ServiceImpl<typeof SandboxService> {
  const { database, lifecycle, fleet, tokens, audit, clock, domains } = needs;
  const known = needs.checkpoints;
  const message = (record: SandboxRecord) => sandboxMessage(record, domains, needs.isCluster);
  const idempotency = new Idempotency(database.idempotencyKeys, clock);
  const made = new NewSandboxes({ ...needs, idempotency, message });

  return {
    async createSandbox(request, context) {
      const caller = callerOf(context);
      const key = callKey("CreateSandbox", CreateSandboxRequestSchema, request);
      return await made.create(caller, request, callOf(context, caller), key);
    },

    async forkSandbox(request, context) {
      const caller = callerOf(context);
      const key = callKey("ForkSandbox", ForkSandboxRequestSchema, request);
      return await made.fork(caller, request, callOf(context, caller), key);
    },

    async getSandbox(request, context) {
      return { sandbox: message(await lifecycle.find(callerOf(context), request.id, "id")) };
    },

    async listSandboxes(request, context) {
      const { teamId } = callerOf(context);
      const states = request.states.map((number, index) => {
        const name = stateName(number);
        if (name !== undefined) return name;
        throw refuse(
          `states[${index}]`,
          SandboxState[number] ?? number,
          "a sandbox state such as SANDBOX_STATE_RUNNING",
        );
      });
      // A new filter also enters page-token.ts (`PageFilters`, `markOf`).
      const filters = {
        states: [...new Set(states)],
        metadata: metadata("metadata", request.metadata),
        namePrefix: namePrefix("name", request.name),
        order: sandboxOrder("order_by", request.orderBy),
      };
      const after = request.pageToken === "" ? {} : { after: decodePageToken(request.pageToken, filters) };
      const query = { teamId, ...filters, ...after };
      const list = database.sandboxes.list.bind(database.sandboxes);
      // Whoever sends an empty request (the contract's "Requests") does not look for a token.
      const pageBytes = request.pageSize === 0 ? limits.unpagedListBytes : limits.pageBytes;
      const page = await sandboxPage(list, query, { pageSize: pageSizeOf(request), pageBytes }, message);
      return {
        sandboxes: page.sandboxes,
        nextPageToken: page.next === undefined ? "" : encodePageToken(page.next, filters),
      };
    },

    async deleteSandbox(request, context) {
      const caller = callerOf(context);
      await lifecycle.delete(caller, await lifecycle.find(caller, request.id, "id"));
      return {};
    },

    async suspendSandbox(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.id, "id");
      if (request.waitDurable && !needs.isCluster)
        throw new ClocheError(
          "failed_precondition",
          "wait_durable: suspended sandboxes of a single machine stay on it; only a cluster keeps them in storage",
        );
      const diskOnly = request.memory === false;
      const isDone = request.waitDurable ? isDurable : undefined;
      return { sandbox: message(await lifecycle.suspend(caller, record, { diskOnly, isDone })) };
    },

    async resumeSandbox(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.id, "id");
      return { sandbox: message(await lifecycle.resume(caller, record)) };
    },

    async issueDataPlaneToken(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.sandboxId, "sandbox_id");
      lifecycle.check(record, "issue_token");
      const token = await tokens.issue(caller.teamId, record.id);
      return { ...token, dataPlaneUrl: needs.dataPlaneUrl };
    },

    async updateSandbox(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.id, "id");
      const { name, timeoutSeconds, idleSuspendSeconds, autoResume } = request;
      const settings: SandboxSettings = {
        ...(name !== undefined && { name: displayName("name", name) }),
        ...(request.metadata !== undefined && { metadata: metadata("metadata", request.metadata.entries) }),
        ...(timeoutSeconds !== undefined && { timeoutSeconds: seconds("timeout_seconds", timeoutSeconds) }),
        ...(request.onTimeout !== undefined && { onTimeout: onTimeout("on_timeout", request.onTimeout) }),
        ...(idleSuspendSeconds !== undefined && {
          idleSuspendSeconds: seconds("idle_suspend_seconds", idleSuspendSeconds),
        }),
        ...(autoResume !== undefined && { autoResume }),
        ...(request.onHostLoss !== undefined && {
          onHostLoss: onHostLoss("on_host_loss", request.onHostLoss),
        }),
        ...(request.checkpointEverySeconds !== undefined && {
          checkpointEverySeconds: checkpointEvery("checkpoint_every_seconds", request.checkpointEverySeconds),
        }),
        ...(request.publicPorts !== undefined && {
          publicPorts: ports("public_ports", request.publicPorts.ports),
        }),
        ...(request.egress !== undefined && { egress: egress("egress", request.egress) }),
      };
      // While the sandbox is created, its machine may be made with the former policy.
      if (settings.egress !== undefined) lifecycle.check(record, "update_egress");
      if (Object.keys(settings).length === 0) return { sandbox: message(record) };
      const updated = await lifecycle.update(caller, record, settings);
      if (settings.idleSuspendSeconds !== undefined || settings.name !== undefined)
        updateHost(updated, settings);
      if (settings.egress !== undefined)
        await fleet
          .calls(updated.hostId)
          .update(updated.id, { egress: egressOf(updated) }, callOf(context, caller));
      return { sandbox: message(updated) };
    },

    async listCheckpoints(request, context) {
      const caller = callerOf(context);
      const { sandboxId, pageToken } = request;
      if (sandboxId !== "" && !isSandboxId(sandboxId))
        throw refuse("sandbox_id", sandboxId, "the id of a sandbox");
      if (pageToken !== "") parseListPosition("page_token", pageToken);
      const query = { teamId: caller.teamId, sandboxId, limit: pageSizeOf(request), pageToken };
      const found = await known.checkpoints(query, callOf(context, caller));
      const checkpoints = fittingPage(found.checkpoints.map(checkpointMessage));
      const last = found.checkpoints[checkpoints.length - 1];
      const isWhole = last === undefined || checkpoints.length === found.checkpoints.length;
      const endsAt = isWhole ? undefined : { created_at: last.createdAt, id: last.id };
      return { checkpoints, nextPageToken: endsAt ? listPositionText(endsAt) : found.nextPageToken };
    },

    async deleteCheckpoint(request, context) {
      const caller = callerOf(context);
      const { id } = request;
      if (id === "")
        throw new ClocheError("invalid_argument", "id is missing; it must be the id of a checkpoint");
      try {
        if (!isCheckpointId(id))
          throw new ClocheError("not_found", `id: there is no checkpoint ${JSON.stringify(id)}`);
        const freedBytes = await known.deleteCheckpoint(caller.teamId, id, callOf(context, caller));
        await database.audit.insert(audit.entry(caller, "checkpoint.delete", id));
        return { freedBytes };
      } catch (error) {
        await audit.denied(caller, "checkpoint.delete", id, error);
        throw error;
      }
    },

    getUsage: (request, context) => getUsage(database, callerOf(context).teamId, request, clock.nowMs()),

    listAuditEntries: (request, context) =>
      listAuditEntries(database.audit, callerOf(context).teamId, request),

    async issuePortLink(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.sandboxId, "sandbox_id");
      const port = userPort("port", request.port);
      const path = request.path || "/";
      if (!/^\/(?![/\\])[\x21-\x7e]{0,2000}$/.test(path)) {
        throw refuse("path", path, "an absolute path of printable ASCII that begins with a single /");
      }
      lifecycle.check(record, "issue_token");
      const nowMs = clock.nowMs();
      const expiresAtMs = nowMs + gatewayLimits.portLinkSeconds * 1_000;
      const token = Buffer.from(needs.randomBytes(32)).toString("base64url");
      const link = { sandboxId: record.id, teamId: caller.teamId, port, expiresAtMs };
      await database.portLinks.insert(linkTokenHash(token), link, nowMs);
      await database.audit.insert(audit.entry(caller, "port_link.issue", record.id, "ok", `port ${port}`));
      const query = new URLSearchParams({ token, path });
      const origin = `https://${sandboxDomain(domains, `${port}-${record.id}`)}`;
      return { url: `${origin}${portLinkPath}?${query}`, expiresAtUnix: Math.floor(expiresAtMs / 1_000) };
    },

    async getSandboxEgress(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.id, "id");
      const denied = hasMachine(record.state)
        ? await fleet.calls(record.hostId).egress(record.id, callOf(context, caller))
        : undefined;
      return egressMessage(record, denied);
    },

    async getSandboxMetrics(request, context) {
      const caller = callerOf(context);
      const record = await lifecycle.find(caller, request.id, "id");
      const measured = await fleet.calls(record.hostId).metrics(record.id, callOf(context, caller));
      return metricsMessage(measured, clock.nowMs());
    },
  };

  /** Tells the host without making the caller wait. host-comparison.ts sends a missed idle limit again. */
  function updateHost(record: SandboxRecord, settings: SandboxSettings): void {
    const { idleSuspendSeconds, name } = settings;
    const change = {
      ...(idleSuspendSeconds !== undefined && { idleSuspendSeconds }),
      ...(name !== undefined && { name }),
    };
    const call = { signal: AbortSignal.timeout(gatewayLimits.hostQueryMs), requestId: "" };
    const apply = async () => await fleet.calls(record.hostId).update(record.id, change, call);
    apply().catch((error: unknown) => {
      needs.log.warn({ err: error, sandbox_id: record.id }, "changed settings not sent to the host");
    });
  }
}

const seconds = (field: string, value: number): number =>
  wholeWithin(field, value, 0, limits.timeoutSecondsMax);

const callOf = (context: HandlerContext, caller: Caller): CallContext => ({
  signal: context.signal,
  requestId: caller.requestId,
});
