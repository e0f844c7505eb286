/**
 * The operator's port, on 127.0.0.1 only: `/metrics` for Prometheus, `/healthz` and `/readyz` of the whole service. Read-only and
 * without a key, because it names no sandbox, team or secret. A Host header other than a loopback name is refused: otherwise a web
 * page could read the port by DNS rebinding.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { boundHttp, http1Bounds, type Metrics, sendError, sendJson } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";

export interface OperatorEndpoint {
  port: number;
  close(): Promise<void>;
}

const contentType = "text/plain; version=0.0.4; charset=utf-8";
const loopbackHost = /^(localhost|127\.0\.0\.1)(:\d{1,5})?$/i;

/** `ready` throws a ClocheError that names the part that is not ready. */
export async function openOperatorEndpoint(
  port: number,
  metrics: Metrics,
  ready: () => Promise<void>,
): Promise<OperatorEndpoint> {
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    if (!loopbackHost.test(request.headers.host ?? "")) {
      throw new ClocheError("permission_denied", "the Host header must be 127.0.0.1 or localhost");
    }
    const { method } = request;
    if (method !== "GET" && method !== "HEAD") throw ClocheError.methodNotAllowed(method, ["GET", "HEAD"]);
    switch ((request.url ?? "").split("?", 1)[0]) {
      case "/metrics": {
        const text = await metrics.text();
        response.writeHead(200, { "content-type": contentType, "content-length": Buffer.byteLength(text) });
        response.end(text);
        return;
      }
      case "/readyz":
        await ready();
        return sendJson(response, 200, { status: "ok" });
      case "/healthz":
        return sendJson(response, 200, { status: "ok" });
      default:
        throw new ClocheError("not_found", "there is /metrics, /healthz and /readyz");
    }
  };
  const server = createServer(http1Bounds, (request, response) => {
    answer(request, response).catch((error: unknown) => sendError(response, error));
  });
  boundHttp(server, "operator");
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", () => resolve());
  });
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      const closed = new Promise<void>((resolve) => {
        server.close(() => resolve());
      });
      server.closeAllConnections();
      await closed;
    },
  };
}
