/**
 * Servers of the edge's benchmark, each a process of its own so that none slows another's event loop:
 * `agent` (plain HTTP, answers two bytes), `echo` (bare node:https, the same answer), `edge` before the agent, and `files` (bare
 * node:https that writes and reads files of a folder).
 * Prints its port; ends when its stdin does.
 */
import { once } from "node:events";
import { createReadStream, createWriteStream, readFileSync, statSync } from "node:fs";
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import https from "node:https";
import type { AddressInfo } from "node:net";
import { basename, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { create } from "@bufbuild/protobuf";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { createLog, systemClock } from "@cloche/base";
import { createEdge } from "@cloche/edge";
import { RouteEvent_Kind, RouteEventSchema, RouteService } from "@cloche/protocol/edge";

const [kind, certFile = "", keyFile = "", sandboxId = "", agentPort = "0"] = process.argv.slice(2);
const folder = sandboxId;

const answer = (request: IncomingMessage, response: ServerResponse): void => {
  request.resume();
  response.writeHead(200, ["content-type", "application/json", "content-length", "2"]);
  response.end("{}");
};

const files = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
  const path = join(folder, basename(request.url ?? ""));
  if (request.method === "PUT") {
    await pipeline(request, createWriteStream(path));
    return answer(request, response);
  }
  response.writeHead(200, { "content-length": statSync(path).size });
  await pipeline(createReadStream(path), response).catch(() => undefined);
};

async function listen(server: http.Server | https.Server): Promise<number> {
  server.keepAliveTimeout = 0;
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

function edge(tls: { cert: string; key: string }): Promise<{ port: number }> {
  const route = {
    sandboxId,
    state: "SANDBOX_STATE_RUNNING",
    hostId: "",
    agentHost: "127.0.0.1",
    agentPort: Number(agentPort),
    epoch: 1n,
  };
  const transport = createRouterTransport(({ service }) => {
    service(RouteService, {
      async *watchRoutes(_request, context) {
        yield create(RouteEventSchema, { kind: RouteEvent_Kind.SET, route });
        yield create(RouteEventSchema, { kind: RouteEvent_Kind.SYNCED });
        await once(context.signal, "abort");
      },
    });
  });
  return createEdge({
    takesAgentsWithoutChannel: true,
    tls,
    baseDomain: "cloche.localhost",
    port: 0,
    address: "127.0.0.1",
    routes: createClient(RouteService, transport),
    hostDataPlane: answer,
    clock: systemClock,
    // As in service: one line a request, to a file.
    log: createLog({ level: "info", file: process.env.CLOCHE_BENCH_LOG ?? "/dev/null" }),
  }).start();
}

const readTls = (): { cert: string; key: string } => ({
  cert: readFileSync(certFile, "utf8"),
  key: readFileSync(keyFile, "utf8"),
});
let port: number;
if (kind === "agent") port = await listen(http.createServer(answer));
else if (kind === "echo")
  port = await listen(https.createServer({ ...readTls(), ALPNProtocols: ["http/1.1"] }, answer));
else if (kind === "files")
  port = await listen(https.createServer(readTls(), (...both) => void files(...both)));
else port = (await edge(readTls())).port;
console.log(port);
process.once("SIGINT", () => process.exit(0));
process.stdin.resume().once("end", () => process.exit(0));
