// The HTTP that cases speak: written on node:http alone, so that a fault of our own client cannot hide one of the service.
import http from "node:http";
import https from "node:https";
import type { Socket } from "node:net";

/** The service under test. */
export interface Target {
  /** http://host:port */
  gatewayUrl: string;
  apiKey: string;
  /** Where to connect for any sandbox domain. */
  edgeHost: string;
  edgePort: number;
  /** PEM of the authority that signed the edge's certificate. */
  ca: string;
  /** API key of a second team: without it the cases about other teams are skipped. */
  otherTeamKey?: string;
  /** The service's signing key: without it the refusals of forged tokens that need a true signature are skipped. */
  signingKey?: { kid: string; privateKeyPem: string };
  /** Whether OCI containers can run there. Default true. */
  containers?: boolean;
  /** How many times as long as usual to wait for anything: emulated machines are slow. Default 1. */
  patience?: number;
}

export interface WireRequest {
  method: string;
  /** Sent as it stands, query included. */
  path: string;
  headers?: Record<string, string>;
  body?: Buffer | undefined;
  /** The whole exchange must end within this time, times the target's patience. Default 120,000 ms. */
  deadlineMs?: number;
}
export interface WireAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

const DEADLINE_MS = 120_000;

/** Connections to one service; close it when done. */
export class Wire {
  readonly #target: Target;
  readonly #plain = new http.Agent({ keepAlive: true, maxSockets: 64 });
  readonly #secure = new https.Agent({ keepAlive: true, maxSockets: 64 });

  constructor(target: Target) {
    this.#target = target;
  }

  gateway(request: WireRequest): Promise<WireAnswer> {
    const url = new URL(this.#target.gatewayUrl);
    const options = { host: url.hostname, port: url.port, agent: this.#plain };
    return exchange((more) => http.request({ ...options, ...more }), this.#patient(request), {
      host: url.host,
    });
  }

  /** `domain` as the gateway gave it, with or without a port. */
  dataPlane(domain: string, request: WireRequest): Promise<WireAnswer> {
    const servername = domain.replace(/:\d+$/, "");
    const { edgeHost, edgePort, ca } = this.#target;
    const options = { host: edgeHost, port: edgePort, agent: this.#secure, servername, ca };
    return exchange((more) => https.request({ ...options, ...more }), this.#patient(request), {
      host: domain,
    });
  }

  #patient(request: WireRequest): WireRequest {
    const { patience = 1 } = this.#target;
    return { ...request, deadlineMs: (request.deadlineMs ?? DEADLINE_MS) * patience };
  }

  close(): void {
    this.#plain.destroy();
    this.#secure.destroy();
  }
}

type Start = (options: http.RequestOptions) => http.ClientRequest;

async function exchange(start: Start, request: WireRequest, host: { host: string }): Promise<WireAnswer> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await exchangeOnce(start, request, host);
    } catch (error) {
      // A kept connection that the server closed meanwhile: every client tries once more on a fresh one.
      const stale = (error as { onReusedSocket?: boolean }).onReusedSocket === true;
      if (!stale || attempt > 2) throw error;
    }
  }
}

function exchangeOnce(start: Start, request: WireRequest, host: { host: string }): Promise<WireAnswer> {
  const { promise, resolve, reject } = Promise.withResolvers<WireAnswer>();
  const length = request.body ? { "content-length": String(request.body.length) } : {};
  const wanted = { method: request.method, path: request.path };
  const outgoing = start({ ...wanted, headers: { ...host, ...length, ...request.headers } });
  let answered = false;
  const timer = setTimeout(() => {
    outgoing.destroy(new Error(`${request.method} ${request.path}: no whole answer within the deadline`));
  }, request.deadlineMs);
  const fail = (error: Error): void => {
    clearTimeout(timer);
    const reset = ["ECONNRESET", "EPIPE"].includes((error as NodeJS.ErrnoException).code ?? "");
    reject(Object.assign(error, { onReusedSocket: reset && outgoing.reusedSocket && !answered }));
  };
  outgoing.on("error", (error) => {
    // A server that refuses a large body answers before it has read all: the write fails, the answer still comes.
    if (!answered) setTimeout(() => (answered ? undefined : fail(error)), 50);
  });
  outgoing.on("response", (incoming) => {
    answered = true;
    const chunks: Buffer[] = [];
    incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
    incoming.on("error", fail);
    incoming.on("end", () => {
      clearTimeout(timer);
      resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, body: Buffer.concat(chunks) });
    });
  });
  outgoing.on("upgrade", (incoming, socket: Socket) => {
    clearTimeout(timer);
    socket.destroy();
    resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, body: Buffer.alloc(0) });
  });
  outgoing.end(request.body);
  return promise;
}
