import type { OkResponse, ServiceRecord } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { departure } from "../http/departure.ts";
import { drained } from "../http/drained.ts";
import { queryBoolean, queryInteger } from "../http/query.ts";
import type { Route } from "../http/router.ts";
import { type ContainerExecParts, execInContainer } from "./container-exec.ts";
import { readDefinition } from "./definition.ts";
import type { Supervisor } from "./supervisor.ts";

const definitionBytes = 1_048_576;

/** Routes of services (spec/contract.md, Data plane: services). */
export function serviceRoutes(supervisor: Supervisor, execParts: ContainerExecParts): Route[] {
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
      handle: named((name, exchange) => execInContainer(supervisor, name, exchange, execParts)),
    },
    {
      method: "GET",
      path: "/v1/services/:name/logs",
      handle: named((name, exchange) => logs(supervisor, name, exchange)),
    },
  ];
}

/**
 * The log as text: the last `tail` lines (default all); with `follow=true` also new output, until the client goes away or the service is
 * deleted.
 */
async function logs(supervisor: Supervisor, name: string, exchange: Exchange): Promise<undefined> {
  const { log } = supervisor.get(name);
  const follow = queryBoolean(exchange.query, "follow") ?? false;
  const tail = queryInteger(exchange.query, "tail", 0, 10_000_000);
  const position = tail === undefined ? log.start : await log.tailPosition(tail);
  const { response } = exchange;
  const over = departure(exchange);
  response.writeHead(200, { "content-type": "text/plain; charset=utf-8", "cache-control": "no-store" });
  response.flushHeaders();
  for await (const block of log.read(position, follow, over)) {
    if (!response.write(block)) await drained(response);
  }
  response.end();
  return undefined;
}
