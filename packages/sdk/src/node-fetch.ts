/**
 * A `fetch` over Node's HTTP. It trusts the service's authority, reaches sandbox domains that do not resolve, and has no time limit,
 * because a command may run for days (Node's fetch gives up after five minutes without a byte). It starts a thirtieth of a second faster
 * than Node's fetch, and loads TLS only if a URL needs it.
 */
import { Agent, type ClientRequest, type IncomingMessage, request, type RequestOptions } from "node:http";
import type { Agent as TlsAgent } from "node:https";
import type { Fetch, FetchResponse, OpenWebSocket } from "./index.ts";
import type { NodeFetchOptions } from "./node-connection.ts";
import { responseOf } from "./node-response.ts";
import { nodeRoute } from "./node-route.ts";
import { nodeWebSocket } from "./node-web-socket.ts";

/** As `Fetch`, with a WebSocket that uses the same routes and authority. `close` closes kept connections. */
export type NodeFetch = Fetch & { webSocket: OpenWebSocket; close(): Promise<void> };

/** The server ends an idle connection after 75 s; the client must close it earlier. */
const keptIdleMs = 30_000;

/** Connections are kept for further requests. A kept connection does not keep the program running. */
export function nodeFetch(options: NodeFetchOptions = {}): NodeFetch {
  const route = nodeRoute(options);
  const plain = new Agent({ keepAlive: true, timeout: keptIdleMs });
  let secure: Promise<TlsAgent> | undefined;
  const secureAgent = async (): Promise<TlsAgent> => {
    const [https, secureContext] = await Promise.all([import("node:https"), route.secureContext()]);
    return new https.Agent({ keepAlive: true, timeout: keptIdleMs, ...(secureContext && { secureContext }) });
  };
  const fetch: Fetch = async (text, init) => {
    init.signal?.throwIfAborted();
    const url = new URL(text);
    const isPlain = url.protocol === "http:";
    const agent = isPlain ? plain : await (secure ??= secureAgent());
    const body = await bodyOf(init);
    return exchange({ ...route.to(url), agent, ...(!isPlain && { protocol: "https:" }) }, url, init, body);
  };
  return Object.assign(fetch, {
    webSocket: nodeWebSocket(route),
    async close() {
      plain.destroy();
      (await secure)?.destroy();
    },
  });
}

type Body = string | Uint8Array | ReadableStream<Uint8Array> | undefined;

/** Bodies that Node's HTTP does not accept (a Blob, a form) are converted by the platform's Response. */
async function bodyOf(init: RequestInit): Promise<Body> {
  const { body } = init;
  if (body === undefined || body === null) return undefined;
  if (typeof body === "string" || body instanceof Uint8Array || body instanceof ReadableStream) return body;
  return new Uint8Array(await new Response(body).arrayBuffer());
}

/** Sends one request; resolves with the head of its answer. Redirects are not followed. */
function exchange(to: RequestOptions, url: URL, init: RequestInit, body: Body): Promise<FetchResponse> {
  const headers: Record<string, string | number> = {
    host: url.host,
    ...(init.headers as Record<string, string>),
  };
  if (typeof body === "string" || body instanceof Uint8Array)
    headers["content-length"] = Buffer.byteLength(body);
  const signal = init.signal ?? undefined;
  return new Promise((resolve, reject) => {
    const call = request({
      ...to,
      method: init.method ?? "GET",
      path: `${url.pathname}${url.search}`,
      headers,
    });
    let answer: IncomingMessage | undefined;
    const abort = (): void => {
      (answer ?? call).destroy(signal?.reason as Error);
    };
    signal?.addEventListener("abort", abort, { once: true });
    call.once("response", (response) => {
      answer = response;
      // The complete answer came before the body was sent: do not send the rest.
      response.once("end", () => call.writableEnded || call.destroy());
      resolve(responseOf(response));
    });
    // After the answer began, the reader of its body gets the error instead.
    call.on("error", reject);
    call.once("close", () => signal?.removeEventListener("abort", abort));
    send(call, body, reject);
  });
}

function send(call: ClientRequest, body: Body, reject: (error: unknown) => void): void {
  if (!(body instanceof ReadableStream)) {
    call.end(body);
    return;
  }
  const feed = async (): Promise<void> => {
    const reader = body.getReader();
    call.once("close", () => void reader.cancel().catch(() => undefined));
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      if (call.destroyed) return;
      if (!call.write(next.value)) await drained(call);
    }
    call.end();
  };
  feed().catch((error: unknown) => {
    reject(error);
    call.destroy(error as Error);
  });
}

/** Resolves when there is room again, or the request is closed. */
const drained = (call: ClientRequest): Promise<void> =>
  new Promise((resolve) => {
    const done = (): void => {
      call.off("drain", done).off("close", done);
      resolve();
    };
    call.on("drain", done).on("close", done);
  });
