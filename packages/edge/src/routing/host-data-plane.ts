/**
 * The checkpoint and restore routes of sandboxes on other computers. The request is passed to the host unchanged, over
 * HTTP/1.1 within mutual TLS, and the answer passed back, each at the pace of its reader. The host verifies the token.
 *
 *   client ⇄ edge ⇄ host         client gone: the request to the host is ended; host gone: 503 before the answer, cut within it
 *
 * Each call has its own connection, because these calls are few and long. Failed connections are retried as to an
 * agent.
 */
import { type IncomingMessage, request as httpRequest, type ServerResponse } from "node:http";
import type { TLSSocket } from "node:tls";
import { sendError } from "@cloche/base";
import { ClocheError, internalHeaders } from "@cloche/protocol";
import { answerHeaders, forwardableHeaders } from "../exchange/headers.ts";
import type { HostRelays } from "../upstream/host-relays.ts";
import type { HostDataPlane, HostRequestContext } from "./router.ts";

export function hostDataPlane(relays: HostRelays): HostDataPlane {
  return (request, response, context) => {
    // Nothing is sent before the connection is made, so it may be retried for a while.
    relays
      .toHost(context.route, () => !response.destroyed)
      .then(
        (host) => passOn(request, response, context, host),
        (cause: unknown) => refuse(response, cause, "the sandbox's host cannot be reached"),
      );
  };
}

function refuse(response: ServerResponse, cause: unknown, message: string): void {
  if (response.headersSent || response.destroyed) response.destroy();
  else sendError(response, new ClocheError("unavailable", message, { cause, retryAfterSeconds: 1 }));
}

function passOn(
  request: IncomingMessage,
  response: ServerResponse,
  { sandboxId, requestId }: HostRequestContext,
  host: TLSSocket,
): void {
  if (response.destroyed) return void host.destroy();
  const { "content-length": length, "transfer-encoding": coding } = request.headers;
  const upstream = httpRequest({
    createConnection: () => host,
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
      "connection",
      "close",
    ],
  });
  upstream.on("error", (cause) =>
    refuse(response, cause, "the sandbox's host gave no answer; what was asked may run on"),
  );
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
