/** Passes requests for other ports of a sandbox (by E2B's headers) to the edge, which knows the sandbox's route and its public ports. */
import { request as plainRequest, type IncomingMessage, type ServerResponse } from "node:http";
import { request as tlsRequest, type RequestOptions } from "node:https";
import { E2bError } from "./e2b-error.ts";
import { answerError } from "./http.ts";

const hopByHop = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
/** Headers that are not passed on: hop-by-hop ones, and those of this endpoint. */
const own = new Set([
  ...hopByHop,
  "host",
  "e2b-sandbox-id",
  "e2b-sandbox-port",
  "x-access-token",
  "e2b-traffic-access-token",
]);

export interface EdgeAddress {
  url: URL;
  ca: string | undefined;
}

/**
 * `token`: opens ports that are not public; undefined: the caller has none. Each request has a connection of its own and is framed as it
 * came, whatever its method, so that no byte of it can become a request of another caller.
 */
export function passOn(
  edge: EdgeAddress,
  { host, token }: { host: string; token: string | undefined },
  request: IncomingMessage,
  response: ServerResponse,
): Promise<E2bError | undefined> {
  const headers: Record<string, string | string[]> = { ...framing(request), host };
  for (const [name, value] of Object.entries(request.headers))
    if (value !== undefined && !own.has(name) && !name.startsWith(":")) headers[name] = value;
  if (token !== undefined) headers.authorization = `Bearer ${token}`;
  const { url, ca } = edge;
  const options: RequestOptions = {
    host: url.hostname.replaceAll(/^\[|\]$/g, ""),
    port: url.port || 443,
    agent: false,
    method: request.method,
    path: request.url,
    headers,
    ...(url.protocol === "https:" && { servername: host.replace(/:\d+$/, ""), ca }),
  };
  return new Promise((resolve) => {
    const outgoing = (url.protocol === "https:" ? tlsRequest : plainRequest)(options);
    const fail = (error: unknown): void => {
      request.unpipe(outgoing);
      outgoing.destroy();
      resolve(
        answerError(
          response,
          new E2bError("unavailable", "The port is not open", { status: 502, cause: error }),
        ),
      );
    };
    outgoing.on("error", fail);
    outgoing.once("response", (incoming) => {
      response.writeHead(incoming.statusCode ?? 502, incoming.statusMessage, answerHeaders(incoming));
      incoming.pipe(response);
      incoming.once("error", () => response.destroy());
    });
    response.once("close", () => {
      outgoing.destroy();
      resolve(undefined);
    });
    request.pipe(outgoing);
  });
}

/** The header that frames a body without a length; requests of HTTP/2 have it too (packages/edge/src/http2/http2-request.ts). */
function framing({ headers }: IncomingMessage): Record<string, string> {
  const encoding = headers["transfer-encoding"];
  if (encoding === undefined) return {};
  if (encoding.toLowerCase() === "chunked") return { "transfer-encoding": "chunked" };
  throw new E2bError("unimplemented", "header Transfer-Encoding may only be chunked");
}

/** Without hop-by-hop headers: the answer's own connection is framed anew. */
function answerHeaders({ rawHeaders }: IncomingMessage): string[] {
  return rawHeaders.filter((_, at) => !hopByHop.has((rawHeaders[at - (at % 2)] ?? "").toLowerCase()));
}
