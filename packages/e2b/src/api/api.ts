/** E2B's API: reads the caller's key, finds the route and answers. The gateway checks the key. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { callerIsKnown, heldAnswers, type Hold, listenerBounds, TeamTurns } from "@cloche/base";
import { E2bError, notOffered } from "../e2b-error.ts";
import { answerError, answerJson, apiBody, headerOf, signalOf, targetOf } from "../http.ts";
import type { Sandboxes } from "../envd/sandboxes.ts";
import type { ApiHandler } from "./api-call.ts";
import { create } from "./create.ts";
import * as lifecycle from "./lifecycle.ts";
import { list, listRunning } from "./list.ts";
import { logs, oldLogs } from "./logs.ts";
import { metrics, metricsOfMany } from "./metrics.ts";
import { deleteSnapshot, listSnapshots, snapshot } from "./snapshots.ts";
import { alias, listTemplates } from "./templates.ts";

const without =
  (what: string): ApiHandler =>
  () =>
    Promise.reject(notOffered(what));
const builds = without("building templates; make a snapshot of a sandbox, and create from that");
const tags = without("tags of templates");

/** Method, path with placeholders, handler; the first match wins. */
const routes: readonly (readonly [string, string, ApiHandler])[] = [
  ["GET", "/health", async () => ({ status: 200 })],
  ["POST", "/v2/sandboxes", create],
  ["POST", "/sandboxes", create],
  ["GET", "/v2/sandboxes", list],
  ["GET", "/sandboxes", listRunning],
  ["GET", "/sandboxes/metrics", metricsOfMany],
  ["POST", "/v2/sandboxes/{sandboxID}/connect", lifecycle.connect],
  ["POST", "/sandboxes/{sandboxID}/connect", lifecycle.connect],
  ["POST", "/sandboxes/{sandboxID}/resume", lifecycle.connect],
  ["GET", "/sandboxes/{sandboxID}", lifecycle.get],
  ["DELETE", "/sandboxes/{sandboxID}", lifecycle.kill],
  ["POST", "/sandboxes/{sandboxID}/timeout", lifecycle.setTimeout],
  ["POST", "/sandboxes/{sandboxID}/refreshes", lifecycle.refresh],
  ["POST", "/sandboxes/{sandboxID}/pause", lifecycle.pause],
  ["POST", "/sandboxes/{sandboxID}/fork", lifecycle.fork],
  ["PUT", "/sandboxes/{sandboxID}/network", lifecycle.setNetwork],
  ["POST", "/sandboxes/{sandboxID}/snapshots", snapshot],
  ["GET", "/sandboxes/{sandboxID}/metrics", metrics],
  ["GET", "/v2/sandboxes/{sandboxID}/logs", logs],
  ["GET", "/sandboxes/{sandboxID}/logs", oldLogs],
  ["GET", "/snapshots", listSnapshots],
  ["GET", "/templates", listTemplates],
  ["GET", "/v2/templates", listTemplates],
  ["GET", "/templates/aliases/{alias}", alias],
  ["POST", "/templates/tags", tags],
  ["DELETE", "/templates/tags", tags],
  ["GET", "/templates/{templateID}/tags", tags],
  ["DELETE", "/templates/{templateID}", deleteSnapshot],
  ["POST", "/v3/templates", builds],
  ["POST", "/v2/templates", builds],
  ["POST", "/templates", builds],
  ["GET", "/templates/{templateID}/files/{hash}", builds],
  ["POST", "/v2/templates/{templateID}/builds/{buildID}", builds],
  ["GET", "/templates/{templateID}/builds/{buildID}/status", builds],
  ["GET", "/templates/{templateID}/builds/{buildID}/logs", builds],
];
/** Those that may hold some MiB while they are made. */
const lists: ReadonlySet<ApiHandler> = new Set([list, listRunning, listSnapshots, listTemplates]);
/** Groups of routes that are not offered. */
const groups: readonly (readonly [string, string])[] = [
  ["/volumes", "volumes"],
  ["/volumecontent", "volumes"],
  ["/secrets", "secrets"],
  ["/teams", "teams over E2B's API"],
  ["/api-keys", "API keys over E2B's API; use cloche keys"],
  ["/access-tokens", "access tokens over E2B's API"],
  ["/nodes", "nodes over E2B's API"],
  ["/admin", "administration over E2B's API"],
];

interface Compiled {
  method: string;
  pattern: RegExp;
  handler: ApiHandler;
}
const compiled: readonly Compiled[] = routes.map(([method, path, handler]) => ({
  method,
  pattern: new RegExp(`^${path.replaceAll(/\{(\w+)\}/g, "(?<$1>[^/]+)")}$`),
  handler,
}));

export class Api {
  readonly #sandboxes: Sandboxes;
  readonly #turns = new TeamTurns(listenerBounds.readsOfTeam);

  constructor(sandboxes: Sandboxes) {
    this.#sandboxes = sandboxes;
  }

  /** Answers every request, also with an error; returns the error for the log. */
  async answer(request: IncomingMessage, response: ServerResponse): Promise<E2bError | undefined> {
    try {
      await this.#handle(request, response);
      return undefined;
    } catch (thrown) {
      return answerError(response, thrown);
    }
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = targetOf(request);
    const { handler, params } = routeOf(request.method ?? "GET", pathname);
    const apiKey = pathname === "/health" ? "" : keyOf(request);
    const gateway = this.#sandboxes.gateway(apiKey);
    const checkCaller = async (): Promise<Hold> => {
      await gateway.listSandboxes({ page_size: 1 });
      return this.#sandboxes.bodies.of(apiKey, response);
    };
    const teamId = apiKey === "" ? undefined : await this.#sandboxes.teamOf(apiKey);
    const isList = teamId !== undefined && lists.has(handler);
    const endTurn = isList ? await this.#turns.enter(teamId, signalOf(response)) : undefined;
    try {
      const { status, body, headers } = await handler({
        sandboxes: this.#sandboxes,
        gateway,
        apiKey,
        params,
        query: searchParams,
        body: request.method === "GET" ? {} : await apiBody(request, checkCaller),
        request,
      });
      // The gateway has taken the key.
      if (apiKey !== "") callerIsKnown(request);
      if (teamId !== undefined) heldAnswers.watch(response, teamId);
      answerJson(response, status, body, headers);
    } finally {
      endTurn?.();
    }
  }
}

function routeOf(method: string, path: string): { handler: ApiHandler; params: Record<string, string> } {
  const fitting = compiled.filter(({ pattern }) => pattern.test(path));
  const route = fitting.find((one) => one.method === method);
  if (route !== undefined) {
    const named = Object.entries(route.pattern.exec(path)?.groups ?? {});
    return {
      handler: route.handler,
      params: Object.fromEntries(named.map(([name, text]) => [name, decoded(text)])),
    };
  }
  const [, missing] = groups.find(([start]) => path === start || path.startsWith(`${start}/`)) ?? [];
  if (missing !== undefined) throw notOffered(missing);
  if (fitting.length > 0)
    throw new E2bError(
      "unimplemented",
      `${path} takes ${fitting.map((one) => one.method).join(" and ")}, not ${method}`,
      { status: 405 },
    );
  throw new E2bError("not_found", `there is no route ${method} ${path}`);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new E2bError("invalid_argument", "the path is not valid percent-encoding");
  }
}

function keyOf(request: IncomingMessage): string {
  const [, bearer] = /^bearer +(\S+) *$/i.exec(headerOf(request, "authorization") ?? "") ?? [];
  const key = headerOf(request, "x-api-key") ?? bearer ?? "";
  if (!/^[\x21-\x7e]{1,512}$/.test(key))
    throw new E2bError(
      "unauthenticated",
      "header X-API-Key is missing; it must be an API key (cloche status --json: e2b.api_key)",
    );
  return key;
}
