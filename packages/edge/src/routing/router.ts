import { bearerToken, type Clock, type KeySet, type Log, RateLimit, TokenVerifier } from "@cloche/base";
import { ClocheError, fileLinkPath, internalHeaders, isHostPath, portLinkPath } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { IncomingMessage, ServerResponse } from "node:http";
import { parseAuthority, type Target } from "./authority.ts";
import {
  anyOrigin,
  corsHeaders,
  isPreflight,
  portPreflightHeaders,
  preflightHeaders,
  type CorsOrigins,
} from "./cors.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { abortExec } from "../upstream/exec-abort.ts";
import {
  fileHeaders,
  fileLinkOf,
  fileTarget,
  isFileLinkUse,
  linkDropped,
  makeFileLink,
  methodRefused,
  useUp,
} from "./file-link-access.ts";
import { forward } from "../upstream/forward.ts";
import { forwardToPort, type PortForwarding } from "../upstream/forward-port.ts";
import { Gate } from "./gate.ts";
import { forwardableHeaders } from "../exchange/headers.ts";
import {
  authorisePort,
  type PortCredentials,
  portCredentials,
  portHeaders,
  type PortPlace,
  redeemPortLink,
  takesCookie,
} from "./port-access.ts";
import type { NeighbourPort } from "./neighbour.ts";
import { tooManyHeaders } from "../exchange/raw-answer.ts";
import { newId } from "../exchange/request-ids.ts";
import type { RouteClient, RouteTable } from "../route-table.ts";
import { authorizationOf } from "../exchange/request-token.ts";
import { asksForPort, sandboxPath, sharedHostname, sharedTarget, varyByTarget } from "./shared-address.ts";
import { sharedPortAnswer } from "./shared-port.ts";
import { PortClosedError, type Upstreams } from "../upstream/upstreams.ts";
import { Visits } from "./visits.ts";
import type { Waiter } from "./waiting-room.ts";

/** What the handler of checkpoint and restore routes is told of a request. The handler must verify the token. */
export interface HostRequestContext {
  sandboxId: string;
  /** The host of the sandbox. */
  hostId: string;
  requestId: string;
  route: Route;
}
export type HostDataPlane = (
  request: IncomingMessage,
  response: ServerResponse,
  context: HostRequestContext,
) => void;

export interface RouterParts {
  baseDomain: string;
  table: RouteTable;
  client: RouteClient;
  upstreams: Upstreams;
  hostDataPlane: HostDataPlane;
  corsOrigins: CorsOrigins;
  limits: EdgeLimits;
  clock: Clock;
  log: Log;
}

const secondsOfBurst = 5;
/** How often a request is routed again when its sandbox moved before anything was sent. */
const movesMax = 3;

/** Paths between edge and agent, closed to clients. */
const isInternalPath = (path: string): boolean => /^\/+cloche(?:[./]|$)/i.test(path);

/** Decides who answers a request, and passes it there. */
export class Router {
  readonly #parts: RouterParts;
  readonly #gate: Gate;
  readonly #verifier: TokenVerifier;
  readonly #rate: RateLimit;
  readonly #visits: Visits;

  constructor(parts: RouterParts) {
    this.#parts = parts;
    this.#gate = new Gate(parts.table, parts.client, parts.limits);
    this.#visits = new Visits(parts.limits);
    this.#rate = new RateLimit({
      perSecond: parts.limits.requestsPerSecond,
      burstSeconds: secondsOfBurst,
      monotonicMs: () => parts.clock.monotonicMs(),
    });
    this.#verifier = new TokenVerifier(
      () => keysOf(parts.table),
      () => parts.clock.nowMs(),
    );
  }

  route(exchange: Exchange): void {
    const target = this.#target(exchange);
    if (target === undefined) return;
    exchange.sandboxId = target.sandboxId;
    if (this.#isTooFast(exchange, target.sandboxId)) return;
    if (target.port !== undefined) return this.#beginPort(exchange, { ...target, port: target.port });
    const { request, path } = exchange;
    // A link is itself the credential, and may be used by any page.
    const origins = anyOrigin(exchange) ? "*" : this.#parts.corsOrigins;
    if (isPreflight(request)) {
      exchange.begin(204, undefined, preflightHeaders(request, origins));
      exchange.end();
      return;
    }
    const isShared = target.prefix !== undefined;
    exchange.finalHeaders = [...corsHeaders(request, origins), ...(isShared ? varyByTarget : [])];
    if (isInternalPath(path)) {
      exchange.fail(new ClocheError("not_found", `there is no route ${path}`));
      return;
    }
    if (path === fileLinkPath) {
      if (methodRefused(exchange)) return;
      const answering = isFileLinkUse(exchange)
        ? this.#useFileLink(exchange)
        : this.#makeFileLink(exchange, target);
      answering.catch((error: unknown) => exchange.fail(ClocheError.from(error)));
      return;
    }
    this.#dispatch(exchange, target.sandboxId, isHostPath(path));
  }

  /** Answers a request that a neighbour found to be for a port. */
  toPort(exchange: Exchange, found: NeighbourPort): void {
    const { sandboxId, port } = found;
    if (!this.#isWellFormed(exchange)) return;
    exchange.sandboxId = sandboxId;
    if (this.#isTooFast(exchange, sandboxId)) return;
    const hostname = `${port}-${sandboxId}.${this.#parts.baseDomain}`;
    this.#beginPort(exchange, { sandboxId, port, hostname }, found);
  }

  #beginPort(exchange: Exchange, target: Target & { port: number }, found?: NeighbourPort): void {
    exchange.forPort = true;
    this.#routePort(exchange, target, found).catch((error: unknown) =>
      exchange.fail(ClocheError.from(error)),
    );
  }

  /** Makes a link, without the agent: a sandbox may doze or be in a restore. */
  async #makeFileLink(exchange: Exchange, target: Target): Promise<void> {
    const { sandboxId, request } = exchange;
    const authorise = async (): Promise<unknown> =>
      this.#verifier.verify(bearerToken(authorizationOf(request)), sandboxId);
    // An unknown sandbox is 404 before any token is checked.
    if (this.#parts.table.get(sandboxId) !== undefined) await authorise();
    const route = await this.#gate.admit(sandboxId, true, { kind: "bearer", authorise });
    const origin = `${exchange.isPlain ? "http" : "https"}://${request.headers.host}`;
    // At the shared address the link must name the sandbox by its path, since its user sends no header for that.
    const address = target.prefix === undefined ? origin : `${origin}${sandboxPath(sandboxId)}`;
    exchange.callerIsKnown = true;
    const link = await makeFileLink(exchange, route, address, this.#parts.clock.nowMs());
    if (exchange.gone || exchange.over) return;
    const body = Buffer.from(JSON.stringify(link));
    const length = String(body.length);
    const kind = ["content-type", "application/json", "cache-control", "no-store"];
    exchange.begin(200, undefined, [...kind, "content-length", length]);
    exchange.end(body);
  }

  /** Sends the agent the request that the link allows, with an inner token. */
  async #useFileLink(exchange: Exchange): Promise<void> {
    const { table, clock, client, upstreams, limits } = this.#parts;
    const { sandboxId, request } = exchange;
    const verify = (route: Route | undefined): Promise<unknown> =>
      Promise.resolve(route === undefined ? undefined : fileLinkOf(exchange, route, clock.nowMs()));
    await verify(table.get(sandboxId));
    const authorise = async (): Promise<unknown> => verify(table.get(sandboxId));
    const route = await this.#gate.admit(sandboxId, false, { kind: "bearer", authorise });
    const link = fileLinkOf(exchange, route, clock.nowMs());
    exchange.callerIsKnown = true;
    const authorization = upstreams.credentials(route)?.forLink();
    if (authorization === undefined)
      throw new ClocheError("unimplemented", "this machine takes no links to files");
    await useUp(link, exchange, client);
    if (exchange.gone || exchange.over) return;
    exchange.finalHeaders.push(...fileHeaders(link));
    const dropped = new Set([...linkDropped, ...(exchange.untraced ?? [])]);
    forward(
      exchange,
      {
        pool: upstreams.agent(route),
        target: fileTarget(link),
        headers: forwardableHeaders(request, dropped, authorization),
        explain: (failure) => this.#gate.explain(sandboxId, failure),
      },
      limits,
    );
  }

  /** Sends the request to agent or host, once the gate admits it. `body`: the body, if it was read already. */
  #dispatch(exchange: Exchange, sandboxId: string, toHost: boolean, body?: Buffer): void {
    const route = this.#gate.now(sandboxId, toHost);
    if (route !== undefined) return this.#send(exchange, route, toHost, body);
    const authorise = async (): Promise<void> => {
      this.#verifier.verify(bearerToken(authorizationOf(exchange.request)), sandboxId);
    };
    this.#gate.admit(sandboxId, toHost, { kind: "bearer", authorise }).then(
      (admitted) => {
        if (!exchange.gone && !exchange.over) this.#send(exchange, admitted, toHost, body);
      },
      (error: unknown) => exchange.fail(ClocheError.from(error)),
    );
  }

  /** Counts requests of known sandboxes only; requests for others get 404 and are not remembered. */
  #isTooFast(exchange: Exchange, sandboxId: string): boolean {
    const waitSeconds = this.#parts.table.get(sandboxId) === undefined ? 0 : this.#rate.take(sandboxId);
    if (waitSeconds === 0) return false;
    const most = this.#parts.limits.requestsPerSecond;
    const message = `sandbox ${sandboxId} is asked too fast; at most ${most} requests a second`;
    const retry = { resource: "quota", retryAfterSeconds: waitSeconds } as const;
    exchange.refuse(new ClocheError("resource_exhausted", message, retry));
    return true;
  }

  /** Checks the form of a request; false: it was refused. */
  #isWellFormed(exchange: Exchange): boolean {
    const { request } = exchange;
    const { limits } = this.#parts;
    const bad = (message: string, status?: number): false => {
      exchange.refuse(new ClocheError("invalid_argument", message), status);
      return false;
    };
    if (request.rawHeaders.length > limits.headerCount * 2) {
      const { error, status } = tooManyHeaders(`the request has more than ${limits.headerCount} headers`);
      exchange.refuse(error, status);
      return false;
    }
    const coding = request.headers["transfer-encoding"] ?? "chunked";
    // Whoever gets the request would not learn of another coding: bodies are framed anew on the way.
    if (coding.toLowerCase() !== "chunked") {
      exchange.refuse(new ClocheError("unimplemented", "Transfer-Encoding may only be chunked"));
      return false;
    }
    const url = request.url ?? "";
    if (url.length > limits.urlBytes) return bad(`the URL is longer than ${limits.urlBytes} bytes`, 414);
    if (!url.startsWith("/")) return bad("the request target must be a path beginning with /");
    if (request.headers.host === undefined) return bad("the Host header is missing");
    if (hasTwoHosts(request)) return bad("there is more than one Host header");
    return true;
  }

  /** Finds the target of a request; undefined: the request was refused. */
  #target(exchange: Exchange): Target | undefined {
    if (!this.#isWellFormed(exchange)) return undefined;
    const { baseDomain } = this.#parts;
    const { host = "" } = exchange.request.headers;
    const shared = sharedHostname(host, baseDomain);
    const target = shared === undefined ? parseAuthority(host, baseDomain) : undefined;
    const hostname = shared ?? target?.hostname;
    if (hostname === undefined) {
      exchange.fail(
        new ClocheError("not_found", `there is no sandbox at ${JSON.stringify(host.slice(0, 255))}`),
      );
      return undefined;
    }
    const { servername } = exchange;
    if (servername !== undefined && servername !== hostname) {
      const message = "the Host header names another domain than the TLS connection (SNI)";
      exchange.refuse(new ClocheError("invalid_argument", message), 421);
      return undefined;
    }
    return target ?? this.#sharedTarget(exchange, hostname);
  }

  /** The target at the shared address; undefined: answered already. The request's URL becomes the sandbox's path. */
  #sharedTarget(exchange: Exchange, hostname: string): Target | undefined {
    const { request } = exchange;
    const { corsOrigins } = this.#parts;
    try {
      const target = sharedTarget(request, hostname);
      if (target !== undefined) {
        // A service worker here could read and change the browser's requests to every sandbox.
        if (request.headers["service-worker"] !== undefined)
          throw new ClocheError("permission_denied", "no service worker is served at this address");
        request.url = target.url;
        return target;
      }
      if (!isPreflight(request) || asksForPort(request))
        throw new ClocheError("not_found", "name the sandbox: /sandboxes/{id}/…, or the header x-sandbox-id");
      exchange.begin(204, undefined, preflightHeaders(request, corsOrigins));
      exchange.end();
    } catch (error) {
      exchange.finalHeaders = corsHeaders(request, corsOrigins);
      exchange.fail(ClocheError.from(error));
    }
    return undefined;
  }

  #send(exchange: Exchange, route: Route, toHost: boolean, body?: Buffer): void {
    if (toHost) return this.#sendToHost(exchange, route);
    const shown = authorizationOf(exchange.request);
    // Without a channel, as in tests, the agent verifies the owner's token itself.
    if (this.#parts.upstreams.credentials(route) === undefined)
      return this.#sendToAgent(exchange, route, shown, body);
    this.#innerAuthorization(shown, route).then(
      (authorization) => {
        exchange.callerIsKnown = true;
        if (exchange.gone || exchange.over) return;
        // The sandbox may have moved while the token was verified.
        if (this.#gate.isStill(route)) this.#sendToAgent(exchange, route, authorization, body);
        else this.#dispatch(exchange, route.sandboxId, false, body);
      },
      (error: unknown) => exchange.fail(ClocheError.from(error)),
    );
  }

  /** The inner token for the agent; the owner's token stays in the edge. Throws if it is not valid for the sandbox. */
  async #innerAuthorization(authorization: string | undefined, route: Route): Promise<string | undefined> {
    const token = bearerToken(authorization);
    const claims = this.#verifier.verify(token, route.sandboxId);
    return this.#parts.upstreams.credentials(route)?.forOwner(token as string, claims);
  }

  #sendToAgent(exchange: Exchange, route: Route, authorization = "", whole?: Buffer): void {
    const { upstreams, limits, clock, log } = this.#parts;
    const { request, requestId } = exchange;
    const { sandboxId } = route;
    const pool = upstreams.agent(route);
    const headers = forwardableHeaders(request, exchange.untraced, authorization);
    let onAbort: (() => void) | undefined;
    if (request.method === "POST" && exchange.path === "/v1/exec") {
      const execId = newId();
      headers.push(internalHeaders.execId, execId);
      const delivery = { clock, log, timeoutMs: limits.agentAnswerMs };
      onAbort = () => {
        abortExec(pool, { sandboxId, execId, authorization, requestId }, delivery).catch((error: unknown) =>
          log.error({ err: error, request_id: requestId }, "aborting an exec failed"),
        );
      };
    }
    forward(
      exchange,
      {
        pool,
        headers,
        explain: (failure) => this.#gate.explain(sandboxId, failure),
        ...(route.hostAddress !== "" &&
          exchange.moves < movesMax && {
            again: (body) => {
              exchange.moves += 1;
              this.#dispatch(exchange, sandboxId, false, body);
            },
          }),
        ...(onAbort === undefined ? {} : { onAbort }),
      },
      limits,
      whole,
    );
  }

  #sendToHost(exchange: Exchange, route: Route): void {
    const { request, response, requestId, finalHeaders } = exchange;
    if (exchange.upgradeFirst !== undefined) {
      exchange.fail(new ClocheError("invalid_argument", "this route has no Upgrade"));
      return;
    }
    for (let index = 0; index + 1 < finalHeaders.length; index += 2) {
      response.appendHeader(finalHeaders[index] as string, finalHeaders[index + 1] as string);
    }
    response.setHeader(internalHeaders.requestId, requestId);
    request.headers[internalHeaders.requestId] = requestId;
    exchange.sendContinueIfAsked();
    const context = { sandboxId: route.sandboxId, hostId: route.hostId, requestId, route };
    // The host verifies the token.
    response.once("finish", () => (exchange.callerIsKnown = response.statusCode < 400));
    try {
      this.#parts.hostDataPlane(request, response, context);
    } catch (error) {
      exchange.fail(ClocheError.from(error));
    }
  }

  async #routePort(
    exchange: Exchange,
    target: Target & { port: number },
    found: NeighbourPort | undefined,
  ): Promise<void> {
    const { table, client, clock, upstreams, limits } = this.#parts;
    const { request } = exchange;
    const { sandboxId, port, prefix } = target;
    const host = found?.host ?? request.headers.host ?? "";
    const place: PortPlace = { prefix, isPlain: exchange.isPlain, host };
    if (exchange.path === portLinkPath) {
      if (!takesCookie(place))
        throw new ClocheError("not_found", "a port link is opened with https on the port's own domain");
      const redirect = await redeemPortLink(request, client, target, clock.nowMs(), exchange.requestId);
      exchange.begin(303, undefined, redirect);
      exchange.end();
      return;
    }
    const known = table.get(sandboxId);
    if (port === known?.agentPort) throw agentsPort(port);
    const isPublic = known?.allPortsPublic === true || known?.publicPorts.includes(port) === true;
    const credentials = portCredentials(request, table.keys?.issuer, place, found);
    if (known !== undefined && !isPublic && credentials.token === undefined && isPreflight(request)) {
      exchange.begin(204, undefined, portPreflightHeaders(request));
      exchange.end();
      return;
    }
    const authorise = (): Promise<void> => authorisePort(request, credentials, this.#verifier, target);
    // An unknown sandbox is 404 before any token is checked, as on its own domain.
    if (known !== undefined && !isPublic) await authorise();
    const kind = isPublic ? await visitorOrBearer(credentials, authorise) : "bearer";
    if (kind === "visitor" && known !== undefined) {
      if (exchange.gone || exchange.over) return;
      this.#visits.enter(exchange, known.teamId);
    }
    exchange.callerIsKnown = known !== undefined && kind === "bearer";
    const mayWake = isPublic ? letIn : authorise;
    const route = await this.#gate.admit(sandboxId, false, { kind, authorise: mayWake });
    if (exchange.gone || exchange.over) return;
    const asked = `port ${port} of the sandbox`;
    const forwarding: PortForwarding = {
      headers: [
        ...forwardableHeaders(request, credentials.dropped),
        ...portHeaders(request, credentials, place),
        ...(found === undefined ? [] : ["Host", host]),
      ],
      ...(prefix !== undefined && {
        answer: (headers) => sharedPortAnswer(headers, { prefix, host }),
      }),
      explain: (failure) =>
        failure.cause instanceof PortClosedError
          ? new ClocheError("unavailable", `nothing listens on ${asked}`, {
              cause: failure.cause,
              reason: "nothing_listens",
              retryAfterSeconds: 1,
            })
          : this.#gate.explain(sandboxId, failure, asked),
    };
    forwardToPort(exchange, upstreams.port(route, port), forwarding, limits);
  }
}

/** The public token keys; throws `unavailable` before the gateway has sent them. */
function keysOf({ keys }: RouteTable): KeySet {
  if (keys !== undefined) return keys;
  throw new ClocheError("unavailable", "the edge is starting", { retryAfterSeconds: 1 });
}

/** A public port also admits a request with an invalid token, as a visitor. */
async function visitorOrBearer(
  { token }: PortCredentials,
  authorise: () => Promise<unknown>,
): Promise<Waiter> {
  if (token === undefined) return "visitor";
  return authorise().then(
    () => "bearer",
    () => "visitor",
  );
}

const letIn = (): Promise<void> => Promise.resolve();

const agentsPort = (port: number): ClocheError =>
  new ClocheError(
    "permission_denied",
    `port ${port} of a sandbox is its own agent's and cannot be opened; use another one`,
  );

function hasTwoHosts(request: IncomingMessage): boolean {
  const { rawHeaders } = request;
  let hosts = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] as string;
    if (name.length === 4 && name.toLowerCase() === "host") hosts += 1;
  }
  return hosts > 1;
}
