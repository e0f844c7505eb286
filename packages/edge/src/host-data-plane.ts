/**
 * The checkpoint and restore routes of sandboxes whose host is another computer: the request goes to the host as it is, over HTTP/1.1
 * within mutual TLS, and its answer comes back, each streamed at the pace of who reads it. The host verifies the token.
 *
 *   client ⇄ edge ⇄ host         client gone: the request to the host is ended; host gone: 503 before the answer, cut within it
 *
 * A connection of its own for each: these calls are few and long.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { request as httpsRequest, type RequestOptions } from "node:https";
import type { ConnectionOptions } from "node:tls";
import { parseAddress, sendError } from "@cloche/base";
import { ClocheError, internalHeaders } from "@cloche/protocol";
import { answerHeaders, forwardableHeaders } from "./headers.ts";
import type { HostLinks } from "./relays.ts";
import type { HostDataPlane, HostRequestContext } from "./router.ts";

const connectMs = 5_000;

export function hostDataPlane(links: HostLinks): HostDataPlane {
  return (request, response, context) => {
    const { hostAddress, hostId } = context.route;
    if (hostAddress === "") throw new ClocheError("unavailable", "the sandbox has no host yet", again);
    passOn(request, response, context, { ...links.tlsTo(hostId), ...parseAddress(hostAddress) });
  };
}

const again = { retryAfterSeconds: 1 };

function passOn(
  request: IncomingMessage,
  response: ServerResponse,
  { sandboxId, requestId }: HostRequestContext,
  host: ConnectionOptions,
): void {
  const { "content-length": length, "transfer-encoding": coding } = request.headers;
  const tls = { ...host, ALPNProtocols: ["http/1.1"] } as RequestOptions;
  const options: RequestOptions = {
    ...tls,
    servername: "",
    agent: false,
    method: request.method,
    path: request.url,
    headers: [
      ...forwardableHeaders(request),
      ...(length === undefined ? [] : ["content-length", length]),
      ...(coding === undefined ? [] : ["transfer-encoding", "chunked"]),
      internalHeaders.sandboxId,
      sandboxId,
      internalHeaders.requestId,
      requestId,
    ],
  };
  const upstream = httpsRequest(options);
  const slow = setTimeout(() => upstream.destroy(new Error("the host does not answer")), connectMs);
  upstream.once("socket", (socket) => socket.once("secureConnect", () => clearTimeout(slow)));
  upstream.once("close", () => clearTimeout(slow));
  upstream.on("error", (cause) => {
    if (response.headersSent || response.destroyed) return void response.destroy();
    const message = "the sandbox's host cannot be reached; what was asked may run on";
    sendError(response, new ClocheError("unavailable", message, { cause, ...again }));
  });
  upstream.once("response", (answer: IncomingMessage) => {
    const headers = answerHeaders(answer.rawHeaders);
    for (let index = 0; index + 1 < headers.length; index += 2)
      response.setHeader(headers[index] as string, headers[index + 1] as string);
    response.writeHead(answer.statusCode ?? 502);
    answer.on("error", () => response.destroy());
    answer.pipe(response);
  });
  response.once("close", () => upstream.destroy());
  request.pipe(upstream);
}
