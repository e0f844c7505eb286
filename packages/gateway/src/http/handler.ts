/**
 * Handles one request of the gateway, from Node's request and response to Connect's universal handlers and back. Adds
 * what Connect does not have: request ids, cross-origin rules, health, the alias of the package, and an error body
 * where Connect answers without one.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { constants, type Http2ServerResponse } from "node:http2";
import {
  boundCallTimeout,
  boundedLog,
  type Clock,
  addressOf,
  type BodyBounds,
  connectionKey,
  heldAnswers,
  HeldBytes,
  listenerBounds,
  type Log,
  logIds,
  requestIdOf,
  withRequestIds,
} from "@cloche/base";
import { ClocheError, type ErrorCode, gatewayJsonOptions, limits, traceparentOf } from "@cloche/protocol";
import {
  ConnectError,
  type ConnectRouter,
  createConnectRouter,
  createContextValues,
  type Interceptor,
} from "@connectrpc/connect";
import {
  createAsyncIterable,
  type UniversalHandler,
  type UniversalServerResponse,
} from "@connectrpc/connect/protocol";
import { compressionGzip, universalResponseToNodeResponse } from "@connectrpc/connect-node";
import type { GatewayMetrics } from "../gateway-metrics.ts";
import { gatewayLimits } from "../limits.ts";
import { type Authenticator, callerKey, requestIdKey } from "../rpc/caller.ts";
import type { CallLimits } from "./call-limits.ts";
import { answerCors, type CorsOrigins } from "./cors.ts";
import { connectErrorFrom, plainMessage } from "../errors.ts";
import { type CallUnderWay, callKey, openServices, teamServices } from "./open-services.ts";
import { quickBrotli } from "./quick-brotli.ts";
import { readInTurn } from "./read-turns.ts";
import { checkedBody } from "./request-body.ts";

export interface HandlerDependencies {
  routes: (router: ConnectRouter) => void;
  authenticator: Authenticator;
  callLimits: CallLimits;
  corsOrigins: CorsOrigins;
  /** Throws a ClocheError naming what is not ready. */
  ready: () => Promise<void>;
  /** Ends open streams, such as watches of health. */
  stopping: AbortSignal;
  metrics: Pick<GatewayMetrics, "calls" | "errors">;
  clock: Clock;
  log: Log;
}

export type GatewayHandler = (request: IncomingMessage, response: ServerResponse) => void;

const aliasPrefix = "/svc.public.v1.";
const ownPrefix = "/cloche.public.v1.";

const ownPathOf = (path: string): string =>
  path.startsWith(aliasPrefix) ? ownPrefix + path.slice(aliasPrefix.length) : path;

// oxlint-disable-next-line max-lines-per-function -- one handler, whose steps share the request
export function createHandler(needs: HandlerDependencies): GatewayHandler {
  const { authenticator, clock, log, metrics } = needs;
  const strangersLog = boundedLog(log);
  const known = new WeakSet<IncomingMessage>();
  const logged = (thrown: unknown, requestId: string): ClocheError => {
    const error = ClocheError.from(thrown);
    metrics.errors.add({ code: error.code });
    const fields = { err: error, request_id: requestId };
    // A database that is away fails the calls of strangers too.
    if (error.code === "internal") strangersLog.error(fields, "a gateway call failed");
    else strangersLog.debug(fields, "a gateway call was refused");
    return error;
  };
  const shared = {
    acceptCompression: [compressionGzip, quickBrotli],
    // Compressing one sandbox with its token takes longer than sending it; lists are compressed.
    compressMinBytes: 8 * 1_024,
    interceptors: [errorsAsConnect(logged)],
  };
  const router = createConnectRouter({
    ...shared,
    interceptors: [...shared.interceptors, readInTurn()],
    jsonOptions: gatewayJsonOptions,
    // Bounds the unpacked body; checkedBody bounds the body as sent.
    readMaxBytes: limits.gatewayBodyBytes,
    async requestGate(context) {
      try {
        const requestId = context.values.get(requestIdKey);
        const authorization = context.requestHeader.get("authorization");
        const caller = await authenticator.authenticate(authorization, requestId);
        context.values.set(callerKey, caller);
        const underWay = context.values.get(callKey);
        underWay.isOf(caller.teamId);
        underWay.leave = needs.callLimits.enter(caller);
      } catch (error) {
        throw connectErrorFrom(logged(error, context.values.get(requestIdKey)));
      }
    },
  });
  needs.routes(router);
  const held = new HeldBytes();
  const open = openServices(needs, { ...shared, shutdownSignal: needs.stopping });
  const handlers = new Map<string, UniversalHandler>(
    [...router.handlers, ...open].map((handler) => [handler.requestPath, handler]),
  );

  return (request, response) => {
    const requestId = requestIdOf(request.headers);
    const ids = { requestId, traceparent: traceparentOf(request.headers["traceparent"]) };
    response.setHeader("x-request-id", requestId);
    const beganMs = clock.monotonicMs();
    response.once("close", () => {
      const { statusCode: status, writableFinished } = response;
      const tookMs = clock.monotonicMs() - beganMs;
      const ms = Math.round(tookMs);
      const path = (request.url ?? "").split("?", 1)[0]?.slice(0, 200) ?? "";
      if (path !== "/healthz" && path !== "/readyz") {
        const to = known.has(request) ? log : strangersLog;
        to.info({ ...logIds(ids), path, status, ms, answered: writableFinished }, "gateway call");
        const method = handlers.get(ownPathOf(path))?.method.name ?? "none";
        metrics.calls.observe({ method, status: String(status) }, tookMs / 1_000);
      }
    });
    withRequestIds(ids, () => answer(request, response, requestId)).catch((error: unknown) => {
      if (!response.headersSent && !response.destroyed) {
        sendPlainError(response, 500, logged(error, requestId));
      } else {
        response.destroy();
      }
    });
  };

  async function answer(
    request: IncomingMessage,
    response: ServerResponse,
    requestId: string,
  ): Promise<void> {
    if (answerCors(request, response, needs.corsOrigins)) return;
    const url = request.url ?? "/";
    const path = url.split("?", 1)[0] ?? "/";
    if (url.length > limits.urlBytes)
      return refuseRequest(response, 414, "invalid_argument", "the URL is too long");
    if (path === "/healthz" || path === "/readyz") return await answerHealth(path, request, response);
    const ownPath = ownPathOf(path);
    const handler = handlers.get(ownPath);
    if (handler === undefined) return refusePath(response, path, ownPath);
    if (request.method !== "POST") {
      response.setHeader("allow", "POST");
      const message = `method ${request.method} is not allowed on ${path}; gateway calls are POST`;
      return refuseRequest(response, 405, "invalid_argument", message);
    }
    await call(handler, request, response, requestId);
  }

  async function call(
    handler: UniversalHandler,
    request: IncomingMessage,
    response: ServerResponse,
    requestId: string,
  ): Promise<void> {
    const contentType = request.headers["content-type"] ?? "";
    if (!handler.supportedContentType(contentType)) {
      const message = `content-type ${JSON.stringify(contentType)} is not supported; send application/json`;
      response.setHeader("accept-post", "application/json");
      return refuseRequest(response, 415, "invalid_argument", message);
    }
    const underWay: CallUnderWay = {
      address: addressOf(request.socket),
      end: () => response.destroy(),
      isOf: (teamId) => heldAnswers.watch(response, teamId),
      leave: () => undefined,
      endTurn: () => undefined,
      hold: undefined,
    };
    try {
      await callWith(handler, request, response, requestId, underWay);
    } finally {
      underWay.endTurn();
      underWay.leave();
      underWay.hold?.release();
    }
  }

  async function callWith(
    handler: UniversalHandler,
    request: IncomingMessage,
    response: ServerResponse,
    requestId: string,
    underWay: CallUnderWay,
  ): Promise<void> {
    const contentType = request.headers["content-type"] ?? "";
    const isStream = handler.method.methodKind === "bidi_streaming";
    const isPlainJson = /^application\/json(?:;|$)/i.test(contentType) && !isCompressed(request);
    const gone = new AbortController();
    const closed = new Promise<void>((resolve) => {
      response.once("close", () => {
        gone.abort(isClosed);
        resolve();
      });
    });
    const { socket } = request;
    // Scopes and size of what the caller may make the gateway hold: little, until the gate has found the team.
    const bounds = (): BodyBounds => {
      const { teamId } = contextValues.get(callerKey) ?? {};
      const { strangerBytes, teamBytes, processBytes } = listenerBounds;
      if (teamId === undefined) {
        underWay.hold = held.hold([{ key: connectionKey(socket), most: strangerBytes }]);
        // The head is held as long as the body is waited for.
        underWay.hold.add(headBytes(request));
        return { maxBytes: gatewayLimits.openMessageBytes, hold: underWay.hold };
      }
      known.add(request);
      const scopes = [
        { key: teamId, most: teamBytes },
        { key: "", most: processBytes },
      ];
      underWay.hold = held.hold(scopes);
      return { maxBytes: limits.gatewayBodyBytes, hold: underWay.hold };
    };
    const contextValues = createContextValues().set(requestIdKey, requestId).set(callKey, underWay);
    const answered = await handler({
      httpVersion: request.httpVersion,
      method: "POST",
      url: `http://gateway${handler.requestPath}`,
      header: webHeaders(request),
      // Connect reads a stream as it comes, and bounds each message.
      body: isStream ? request : checkedBody(request, isPlainJson, handler.method.input, bounds),
      signal: gone.signal,
      contextValues,
    });
    const whole = handler.method.methodKind === "unary" ? await wholeBody(answered) : undefined;
    underWay.endTurn();
    if (gone.signal.aborted) return;
    const isUnary = /^application\/(?:json|proto)(?:;|$)/i.test(contentType);
    if (isUnary && whole !== undefined) sendUnary(request, response, answered, whole);
    else {
      if (isStream) endWithAnswer(response);
      const body = whole === undefined ? answered.body : createAsyncIterable(whole.length > 0 ? [whole] : []);
      const sent = universalResponseToNodeResponse({ ...answered, ...(body && { body }) }, response);
      // Connect's own promise may not resolve after the last byte.
      await Promise.race([sent, closed]);
    }
  }

  async function answerHealth(
    path: string,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    if (request.method !== "GET" && request.method !== "HEAD") {
      response.setHeader("allow", "GET, HEAD");
      return refuseRequest(response, 405, "invalid_argument", `${path} is read with GET`);
    }
    if (path === "/readyz") {
      try {
        await needs.ready();
      } catch (error) {
        return sendPlainError(response, 503, ClocheError.from(error));
      }
    }
    sendJson(response, 200, { status: "ok" });
  }
}

/** The abort reason of every call. Created once, because creating an error captures a stack. */
const isClosed = new Error("the connection of the call is closed");

/** Closes the stream after the whole answer, without waiting for what the client may still send. */
function endWithAnswer(response: ServerResponse): void {
  const { stream } = response as unknown as Http2ServerResponse;
  // Only after the trailers are sent: a closed stream drops them.
  const close = (): void => {
    if (!stream.readableEnded) stream.close(constants.NGHTTP2_NO_ERROR);
  };
  stream.once("wantTrailers", () => setImmediate(close));
}

const headBytes = ({ rawHeaders }: IncomingMessage): number =>
  rawHeaders.reduce((sum, text) => sum + text.length, 0);

function isCompressed(request: IncomingMessage): boolean {
  const encoding = request.headers["content-encoding"];
  return encoding !== undefined && encoding !== "identity";
}

/** Turns what a method throws into Connect's error; an unknown error is logged and answered as internal. */
function errorsAsConnect(logged: (thrown: unknown, requestId: string) => ClocheError): Interceptor {
  return (next) => async (request) => {
    try {
      return await next(request);
    } catch (error) {
      if (error instanceof ConnectError) throw error;
      throw connectErrorFrom(logged(error, request.contextValues.get(requestIdKey)));
    }
  };
}

/** Connect makes the bytes of an answer as they are read. */
async function wholeBody({ body }: UniversalServerResponse): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of body ?? []) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function sendUnary(
  request: IncomingMessage,
  response: ServerResponse,
  answered: UniversalServerResponse,
  whole: Uint8Array,
): void {
  let body = whole;
  const isPlain = !answered.header?.has("content-encoding");
  if (answered.status >= 400 && isPlain) body = withPlainMessage(body, answered.status);
  answered.header?.forEach((value, name) => {
    response.setHeader(name, value);
  });
  if (answered.status >= 400) response.setHeader("content-type", "application/json");
  response.setHeader("content-length", body.byteLength);
  // The rest of an unread body stays on the connection, which cannot be used again.
  if (!request.complete && request.httpVersionMajor === 1) response.setHeader("connection", "close");
  response.writeHead(answered.status);
  response.end(body);
}

function withPlainMessage(body: Uint8Array, status: number): Uint8Array {
  const text = Buffer.from(body).toString("utf8");
  if (text === "") return errorBody("internal", `the gateway could not answer (HTTP ${status})`);
  try {
    const error = JSON.parse(text) as { code: string; message?: string };
    return Buffer.from(JSON.stringify({ ...error, message: plainMessage(error.message ?? error.code) }));
  } catch {
    return errorBody("internal", `the gateway could not answer (HTTP ${status})`);
  }
}

const errorBody = (code: ErrorCode, message: string): Uint8Array =>
  Buffer.from(JSON.stringify({ code, message }));

function webHeaders(request: IncomingMessage): Headers {
  boundCallTimeout(request.headers);
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    // checkedBody has checked the length. Connect would compare it with the body, which may be `{}` instead of nothing.
    if (name.startsWith(":") || name === "content-length" || value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) headers.append(name, one);
  }
  return headers;
}

function refusePath(response: ServerResponse, path: string, ownPath: string): void {
  const service = teamServices.find(({ typeName }) => ownPath.startsWith(`/${typeName}/`));
  if (service === undefined) {
    const message = `there is nothing at ${shortened(path)}; gateway calls are POST /cloche.public.v1.SandboxService/<Method>`;
    return refuseRequest(response, 404, "not_found", message);
  }
  const methods = service.methods.map(({ name }) => name).join(", ");
  const method = shortened(ownPath.slice(service.typeName.length + 2));
  const message = `${service.name} has no method ${JSON.stringify(method)}; it has ${methods}`;
  refuseRequest(response, 404, "unimplemented", message);
}

const shortened = (text: string): string => (text.length > 200 ? `${text.slice(0, 200)}…` : text);

/** Answers before the body was read; an HTTP/1.1 connection then closes, so that the body need not be read. */
function refuseRequest(response: ServerResponse, status: number, code: ErrorCode, message: string): void {
  sendPlainError(response, status, new ClocheError(code, message));
}

function sendPlainError(response: ServerResponse, status: number, error: ClocheError): void {
  if (response.req.httpVersionMajor === 1 && !response.req.complete)
    response.setHeader("connection", "close");
  sendJson(response, status, error.toBody());
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  const text = JSON.stringify(body);
  response.setHeader("content-type", "application/json");
  response.setHeader("content-length", Buffer.byteLength(text));
  response.writeHead(status);
  response.end(response.req.method === "HEAD" ? undefined : text);
}
