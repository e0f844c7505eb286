import { once } from "node:events";
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import https from "node:https";
import net, { type AddressInfo } from "node:net";
import tls from "node:tls";
import { channelKeyOf, preSharedKeyOf, silentLog, systemClock } from "@cloche/base";
import { abortExecPath, channel, portTunnelPath } from "@cloche/protocol";
import { createEdge, type Edge, type EdgeOptions, type EdgePorts } from "../edge.ts";
import { selfSigned } from "./certificate.ts";
import { FakeGateway, sandboxA } from "./fake-gateway.ts";

export const baseDomain = "cloche.localhost";

/** The key of the agent's channel. */
export const channelKey = channelKeyOf("the fake agent's secret");

export interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  rawHeaders: string[];
  body: string;
}

/** A request as the agent saw it. */
export interface Seen {
  method: string;
  url: string;
  rawHeaders: string[];
  headers: http.IncomingHttpHeaders;
  body: string;
}

async function wholeAnswer(request: http.ClientRequest): Promise<Answer> {
  const [response] = (await once(request, "response")) as [IncomingMessage];
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  return {
    status: response.statusCode ?? 0,
    headers: response.headers,
    rawHeaders: response.rawHeaders,
    body: Buffer.concat(chunks).toString(),
  };
}

/** An edge before a fake agent and a fake gateway, with a real TLS client. Ends with `await using`. */
export class Rig implements AsyncDisposable {
  readonly edge: Edge;
  readonly gateway: FakeGateway;
  readonly port: number;
  /** The port without TLS. */
  readonly plainPort: number;
  readonly neighbourPort: number;
  readonly agent: http.Server;
  readonly agentPort: number;
  readonly ca: string;
  readonly seen: Seen[] = [];
  readonly aborted: Seen[] = [];
  readonly hostSeen: string[] = [];
  /** Answers requests to the agent; by default 200 with the request that it saw. */
  onAgent: ((request: IncomingMessage, response: ServerResponse) => void) | undefined;
  /** Has the agent's end of an upgraded connection; by default it echoes. */
  onUpgraded: ((socket: net.Socket) => void) | undefined;

  /**
   * With an agent from before the channel, which gets the owner's token itself; `startChannel`: with a present agent.
   */
  static async start(options: Partial<EdgeOptions> = {}): Promise<Rig> {
    return Rig.#start(options, false);
  }

  /** `ownHost`: the edge answers checkpoint routes itself. */
  static async startChannel(options: Partial<EdgeOptions> = {}, ownHost = true): Promise<Rig> {
    return Rig.#start(options, true, ownHost);
  }

  static async #start(options: Partial<EdgeOptions>, throughChannel: boolean, ownHost = true): Promise<Rig> {
    const gateway = await FakeGateway.start();
    const certificate = await selfSigned(baseDomain);
    const secure = { ciphers: channel.cipher, pskCallback: () => preSharedKeyOf(channelKey) };
    const agent = throughChannel ? https.createServer(secure) : http.createServer();
    agent.listen(0, "127.0.0.1");
    await once(agent, "listening");
    let rig: Rig | undefined;
    const edge = createEdge({
      tls: certificate,
      baseDomain,
      port: 0,
      address: "127.0.0.1",
      plain: { port: 0, address: "127.0.0.1" },
      routes: gateway.client,
      ...(ownHost && {
        hostDataPlane: (request, response, context) => {
          rig?.hostSeen.push(`${request.method} ${request.url} ${context.sandboxId}`);
          response.writeHead(200, { "content-type": "application/json" });
          response.end(JSON.stringify({ answeredBy: "host", requestId: context.requestId }));
        },
      }),
      takesAgentsWithoutChannel: !throughChannel,
      clock: systemClock,
      log: silentLog,
      ...options,
    });
    const agentPort = (agent.address() as AddressInfo).port;
    gateway.set({
      sandboxId: sandboxA,
      state: "SANDBOX_STATE_RUNNING",
      hostId: "host-1",
      agentHost: "127.0.0.1",
      agentPort,
      ...(throughChannel && { channelKey }),
      epoch: 1n,
    });
    const ports = await edge.start();
    rig = new Rig(edge, gateway, ports, agent, certificate.cert);
    return rig;
  }

  constructor(edge: Edge, gateway: FakeGateway, ports: EdgePorts, agent: http.Server, ca: string) {
    this.edge = edge;
    this.gateway = gateway;
    this.port = ports.port;
    this.plainPort = ports.plainPort ?? 0;
    this.neighbourPort = ports.neighbourPort ?? 0;
    this.agent = agent;
    this.agentPort = (agent.address() as AddressInfo).port;
    this.ca = ca;
    agent.on("request", (request: IncomingMessage, response: ServerResponse) => {
      if (request.url === abortExecPath) return void this.#record(request, response, this.aborted);
      if (this.onAgent !== undefined) this.onAgent(request, response);
      else void this.#record(request, response, this.seen);
    });
    agent.on("upgrade", (request: IncomingMessage, socket: net.Socket, head: Buffer) => {
      if (request.headers.upgrade === "cloche-port") this.#tunnel(request, socket, head);
      else this.#echoSocket(request, socket, head);
    });
  }

  async #record(request: IncomingMessage, response: ServerResponse, into: Seen[]): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
    } catch {
      return; // the edge gave the request up
    }
    const { method = "", url = "", rawHeaders, headers } = request;
    const seen = { method, url, rawHeaders, headers, body: Buffer.concat(chunks).toString() };
    into.push(seen);
    if (response.headersSent) return;
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify(seen));
  }

  #echoSocket(request: IncomingMessage, socket: net.Socket, head: Buffer): void {
    this.seen.push({
      method: request.method ?? "",
      url: request.url ?? "",
      rawHeaders: request.rawHeaders,
      headers: request.headers,
      body: "",
    });
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello ",
    );
    socket.write(head);
    socket.on("error", () => undefined);
    if (this.onUpgraded !== undefined) this.onUpgraded(socket);
    else socket.pipe(socket);
  }

  #tunnel(request: IncomingMessage, socket: net.Socket, head: Buffer): void {
    const port = Number(request.url?.slice(portTunnelPath.length));
    const far = net.connect({ port, host: "127.0.0.1", noDelay: true });
    far.once("error", () =>
      socket.end("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    );
    far.once("connect", () => {
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cloche-port\r\n\r\n");
      far.write(head);
      far.pipe(socket);
      socket.pipe(far);
    });
    socket.on("error", () => far.destroy());
    socket.on("close", () => far.destroy());
  }

  host(label = sandboxA): string {
    return `${label}.${baseDomain}:${this.port}`;
  }

  /** Headers with the sandbox's token. */
  async bearer(sandboxId = sandboxA): Promise<{ authorization: string }> {
    return { authorization: `Bearer ${await this.gateway.token(sandboxId)}` };
  }

  /** One request without TLS to the shared address. */
  async askPlain(
    path: string,
    options: http.RequestOptions & { body?: string | Buffer } = {},
  ): Promise<Answer> {
    const request = http.request({ host: "127.0.0.1", port: this.plainPort, agent: false, path, ...options });
    request.end(options.body);
    return wholeAnswer(request);
  }

  /** One request by node:https, on a connection of its own unless `agent` is given. */
  async ask(
    options: https.RequestOptions & { label?: string; body?: string | Buffer } = {},
  ): Promise<Answer> {
    const request = this.request(options);
    request.end(options.body);
    return wholeAnswer(request);
  }

  request(options: https.RequestOptions & { label?: string } = {}): http.ClientRequest {
    const label = options.label ?? sandboxA;
    return https.request({
      host: "127.0.0.1",
      port: this.port,
      servername: `${label}.${baseDomain}`,
      ca: this.ca,
      agent: false,
      ...options,
      headers: { host: this.host(label), ...(options.headers as Record<string, string> | undefined) },
    });
  }

  /** A bare TLS connection, for what no client library would send. */
  async connect(servername = `${sandboxA}.${baseDomain}`): Promise<tls.TLSSocket> {
    const socket = tls.connect({
      host: "127.0.0.1",
      port: this.port,
      servername,
      ca: this.ca,
      ALPNProtocols: ["http/1.1"],
    });
    socket.on("error", () => undefined);
    await once(socket, "secureConnect");
    return socket;
  }

  /** A bare TLS connection whose TCP connection can be reset. */
  async connectOver(raw: net.Socket): Promise<tls.TLSSocket> {
    const servername = `${sandboxA}.${baseDomain}`;
    const socket = tls.connect({ socket: raw, servername, ca: this.ca });
    socket.on("error", () => undefined);
    await once(socket, "secureConnect");
    return socket;
  }

  /** Sends bytes and reads until the edge closes. */
  async raw(text: string, servername?: string): Promise<string> {
    const socket = await this.connect(servername);
    socket.write(text, "latin1");
    return readAll(socket);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.edge.stop();
    this.agent.closeAllConnections();
    this.agent.close();
  }
}

export async function readAll(socket: net.Socket): Promise<string> {
  const chunks: Buffer[] = [];
  socket.on("data", (chunk: Buffer) => chunks.push(chunk));
  // Not events.once, which rejects when the edge resets a client that keeps sending.
  if (!socket.closed) await new Promise<void>((resolve) => socket.once("close", () => resolve()));
  return Buffer.concat(chunks).toString("latin1");
}

/** Resolves when `condition` holds; the test's own timeout bounds it. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5));
}
