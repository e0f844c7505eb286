/**
 * The agent's HTTP server. Every request passes the same steps: request id, header limits, authorisation by path, route, handler,
 * answer or error body. Nothing that a client sends may end the process or leave a connection open for ever.
 */
import { createServer, type IncomingMessage, type Server, ServerResponse } from "node:http";
import { createServer as createSecureServer, type ServerOptions as SecureOptions } from "node:https";
import type { Duplex } from "node:stream";
import { ClocheError, dataPlaneStatus, limits, requestIdFrom, traceparentOf } from "@cloche/protocol";
import type { Log } from "../log.ts";
import { discardRest } from "./body.ts";
import { Exchange } from "./exchange.ts";
import { Router, type Route } from "./router.ts";

/** Takes over the socket of an upgraded connection. An error thrown before the first write is answered. */
export interface UpgradeRoute {
  /** Beginning of the paths of this route. */
  prefix: string;
  handle(exchange: Exchange, socket: Duplex, head: Buffer): Promise<void>;
}

export interface HttpServerOptions {
  routes: readonly Route[];
  upgrades?: readonly UpgradeRoute[];
  /** Throws if the caller may not call the path, or delays the request. Called before the route is looked up. */
  authorize(exchange: Exchange): Promise<void> | void;
  /** Called when an authorised request begins; its answer is called when the request has ended. */
  track(path: string): () => void;
  randomBytes(length: number): Uint8Array;
  log: Log;
}

/** `secure`: HTTPS by these; absent: plain HTTP. */
// oxlint-disable-next-line max-lines-per-function -- one server, whose handlers share its state
export function createHttpServer(options: HttpServerOptions, secure?: SecureOptions): Server {
  const router = new Router(options.routes);
  const settings = {
    maxHeaderSize: limits.headerBytes,
    headersTimeout: limits.headersTimeoutMs,
    requestTimeout: 0, // archives may take long; bodies have a stall timer
    keepAliveTimeout: limits.idleConnectionMs,
    keepAlive: true,
    noDelay: true,
  };
  const server =
    secure === undefined ? createServer(settings) : createSecureServer({ ...settings, ...secure });
  server.maxHeadersCount = 0; // counted in begin(): Node would drop the surplus silently
  // A client may close its sending side and still wait for the answer.
  (server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;

  const begin = (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): Exchange => {
    const requestId = requestIdFrom(request.headers["x-request-id"], options.randomBytes);
    response.setHeader("x-request-id", requestId);
    return new Exchange(request, response, requestId, splitTarget(request.url ?? "/"), expectsContinue);
  };

  /** Only after authorisation: a refused request is no activity of the sandbox. */
  const trackUntilClosed = ({ path }: Exchange, carrier: ServerResponse | Duplex): void => {
    const done = options.track(path);
    if (carrier.destroyed) done();
    else carrier.once("close", done);
  };

  const answer = async (exchange: Exchange): Promise<void> => {
    checkHeaders(exchange);
    await options.authorize(exchange);
    trackUntilClosed(exchange, exchange.response);
    const match = router.find(exchange.request.method ?? "", exchange.path);
    exchange.params = match.params;
    const body = await match.handle(exchange);
    if (body !== undefined) exchange.sendJson(200, body);
    if (!exchange.request.complete) discardRest(exchange.request);
  };

  const fail = (exchange: Exchange, thrown: unknown): void => {
    const error = ClocheError.from(thrown);
    const status = error instanceof HeaderLimitError ? 431 : dataPlaneStatus(error);
    if (status >= 500 && status !== 503) {
      const { method, headers } = exchange.request;
      const traceparent = traceparentOf(headers["traceparent"]);
      options.log.error("request failed", {
        request_id: exchange.requestId,
        ...(traceparent !== "" && { trace_id: traceparent.slice(3, 35) }),
        method,
        path: exchange.path.slice(0, 500),
        status,
        error,
      });
    }
    const { response } = exchange;
    if (response.headersSent) {
      response.destroy(); // a broken stream: the client must not take the answer for complete
      return;
    }
    if (status === 401) response.setHeader("www-authenticate", "Bearer");
    if (error.retryAfterSeconds !== undefined) response.setHeader("retry-after", error.retryAfterSeconds);
    if (error.allow !== undefined) response.setHeader("allow", error.allow.join(", "));
    if (exchange.awaitsContinue) response.setHeader("connection", "close");
    exchange.sendJson(status, error.toBody());
    if (!exchange.awaitsContinue) discardRest(exchange.request);
  };

  const onRequest = (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): void => {
    const exchange = begin(request, response, expectsContinue);
    request.on("error", () => undefined);
    answer(exchange).catch((thrown: unknown) => fail(exchange, thrown));
  };
  server.on("request", (request, response) => onRequest(request, response, false));
  server.on("checkContinue", (request, response) => onRequest(request, response, true));

  server.on("upgrade", (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const response = new ServerResponse(request);
    response.assignSocket(socket as Parameters<ServerResponse["assignSocket"]>[0]);
    response.shouldKeepAlive = false;
    socket.on("error", () => undefined);
    const exchange = begin(request, response, false);
    const upgrade = async (): Promise<void> => {
      checkHeaders(exchange);
      await options.authorize(exchange);
      trackUntilClosed(exchange, socket);
      const route = options.upgrades?.find(({ prefix }) => exchange.path.startsWith(prefix));
      if (route === undefined) throw new ClocheError("not_found", "nothing to upgrade to at this path");
      await route.handle(exchange, socket, head);
    };
    upgrade().catch((thrown: unknown) => {
      response.once("finish", () => socket.end());
      fail(exchange, thrown);
    });
  });

  server.on("clientError", (error: NodeJS.ErrnoException, socket: Duplex) => {
    if (!socket.writable || (socket as { bytesWritten?: number }).bytesWritten !== 0) socket.destroy();
    else socket.end(rawAnswer(error.code ?? ""));
  });
  return server;
}

class HeaderLimitError extends ClocheError {}

function checkHeaders({ request }: Exchange): void {
  if (request.rawHeaders.length / 2 > limits.headerCount) {
    throw new HeaderLimitError("resource_exhausted", `more than ${limits.headerCount} headers`);
  }
  if ((request.url ?? "").length > limits.urlBytes) {
    throw new HeaderLimitError("resource_exhausted", `the URL is longer than ${limits.urlBytes} bytes`);
  }
}

/** The raw path and query of a request target, in origin form or (as proxies send it) absolute form. */
function splitTarget(url: string): { path: string; query: string } {
  const target = url.startsWith("/") ? url : (/^https?:\/\/[^/?]*(.*)$/i.exec(url)?.[1] ?? "/");
  const mark = target.indexOf("?");
  if (mark < 0) return { path: target, query: "" };
  return { path: target.slice(0, mark), query: target.slice(mark + 1) };
}

/** The answer to bytes that are no HTTP request, or a request that is too large or too slow. */
function rawAnswer(code: string): string {
  const [status, reason, body] =
    code === "HPE_HEADER_OVERFLOW"
      ? [
          431,
          "Request Header Fields Too Large",
          { code: "resource_exhausted", message: `the headers are larger than ${limits.headerBytes} bytes` },
        ]
      : code === "ERR_HTTP_REQUEST_TIMEOUT"
        ? [
            408,
            "Request Timeout",
            { code: "deadline_exceeded", message: "the request headers did not arrive in time" },
          ]
        : [400, "Bad Request", { code: "invalid_argument", message: "this is not a valid HTTP/1.1 request" }];
  const text = JSON.stringify(body);
  return `HTTP/1.1 ${status} ${reason}\r\ncontent-type: application/json\r\ncontent-length: ${text.length}\r\nconnection: close\r\n\r\n${text}`;
}
