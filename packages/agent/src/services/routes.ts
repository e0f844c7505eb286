import { once } from "node:events";
import { ClocheError, type OkResponse, type ServiceRecord } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { optionalInteger, requiredCommand } from "../http/fields.ts";
import { queryBoolean, queryInteger } from "../http/query.ts";
import type { Route } from "../http/router.ts";
import { type ContainerExecAnswer, execInContainer } from "./container-exec.ts";
import { readDefinition } from "./definition.ts";
import type { Supervisor } from "./supervisor.ts";

const definitionBytes = 1_048_576;
const timeoutSecondsMax = 31_536_000;

/** Routes of services (service-interface.md, Data plane: services). */
export function serviceRoutes(supervisor: Supervisor): Route[] {
  const named =
    <Answer>(answer: (name: string, exchange: Exchange) => Answer) =>
    (exchange: Exchange): Answer =>
      answer(exchange.params["name"] ?? "", exchange);
  return [
    { method: "GET", path: "/v1/services", handle: () => ({ services: supervisor.list() }) },
    { method: "GET", path: "/v1/services/:name", handle: named((name) => supervisor.get(name).record()) },
    {
      method: "PUT",
      path: "/v1/services/:name",
      handle: named(async (name, exchange): Promise<ServiceRecord> => {
        return supervisor.put(name, readDefinition(await exchange.readJson(definitionBytes)));
      }),
    },
    {
      method: "DELETE",
      path: "/v1/services/:name",
      handle: named(async (name): Promise<OkResponse> => {
        await supervisor.delete(name);
        return { ok: true };
      }),
    },
    { method: "POST", path: "/v1/services/:name/start", handle: named((name) => supervisor.start(name)) },
    { method: "POST", path: "/v1/services/:name/stop", handle: named((name) => supervisor.stop(name)) },
    {
      method: "POST",
      path: "/v1/services/:name/exec",
      handle: named((name, exchange) => exec(supervisor, name, exchange)),
    },
    {
      method: "GET",
      path: "/v1/services/:name/logs",
      handle: named((name, exchange) => logs(supervisor, name, exchange)),
    },
  ];
}

async function exec(supervisor: Supervisor, name: string, exchange: Exchange): Promise<ContainerExecAnswer> {
  const service = supervisor.get(name);
  const body = await exchange.readJson();
  if (service.definition.container !== true && service.container === undefined) {
    throw new ClocheError(
      "invalid_argument",
      `service "${name}" runs in no container; use POST /v1/exec for programs of the sandbox`,
    );
  }
  const command = requiredCommand(body, "cmd");
  const timeoutSeconds = optionalInteger(body, "timeout_secs", 1, timeoutSecondsMax);
  const { container } = service;
  if (container === undefined) {
    throw new ClocheError("failed_precondition", `service "${name}" is not running; start it first`);
  }
  return execInContainer(container, command, timeoutSeconds, exchange.gone);
}

/**
 * The log as text: the last `tail` lines (default all there is), and with `follow=true` what comes, until the client goes
 * or the service is deleted.
 */
async function logs(supervisor: Supervisor, name: string, exchange: Exchange): Promise<undefined> {
  const { log } = supervisor.get(name);
  const follow = queryBoolean(exchange.query, "follow") ?? false;
  const tail = queryInteger(exchange.query, "tail", 0, 10_000_000);
  const position = tail === undefined ? log.start : await log.tailPosition(tail);
  const { response, request } = exchange;
  const over = new AbortController();
  response.once("close", () => over.abort());
  request.socket.once("end", () => over.abort()); // a reader that half-closed is not waited on for ever
  response.writeHead(200, { "content-type": "text/plain; charset=utf-8", "cache-control": "no-store" });
  response.flushHeaders();
  for await (const block of log.read(position, follow, over.signal)) {
    if (!response.write(block) && !over.signal.aborted) {
      await Promise.race([once(response, "drain"), once(response, "close")]);
    }
  }
  response.end();
  return undefined;
}
