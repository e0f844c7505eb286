/** A neighbour lets the edge answer for ports: one caller's request never becomes another's, whatever its method and framing. */
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type Server } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { afterEach, beforeEach, expect, it } from "vitest";
import type { CarriedRequest, Neighbour } from "./routing/neighbour.ts";
import { sandboxA } from "./testing/fake-gateway.ts";
import { http2Client, replyOf } from "./testing/http2-client.ts";
import { baseDomain, readAll, Rig, until } from "./testing/rig.ts";

interface Seen {
  method: string | undefined;
  url: string | undefined;
  headers: IncomingMessage["headers"];
  body: string;
}

let rig: Rig;
let server: Server;
let seen: Seen[];
let sockets: Socket[];
let carried: CarriedRequest[];
let token: string;

const serverPort = (): number => (server.address() as AddressInfo).port;
const name = (): string => `${serverPort()}-${sandboxA}.${baseDomain}`;

async function bodyOf(message: IncomingMessage): Promise<string> {
  let text = "";
  for await (const chunk of message) text += String(chunk);
  return text;
}

const neighbour: Neighbour = {
  takes: ({ headers }) => headers["x-key"] !== undefined,
  answer: (incoming, response, { toPort, atOwnAddress }) => {
    if (incoming.url === "/own") return void response.end(`own ${atOwnAddress}`);
    response.setHeader("access-control-allow-origin", "*");
    carried.push(
      toPort({
        sandboxId: sandboxA,
        port: serverPort(),
        token: incoming.headers["x-key"] === "mine" ? token : undefined,
        dropped: new Set(["x-key"]),
        host: name(),
      }),
    );
  },
};

beforeEach(async () => {
  [seen, sockets, carried] = [[], [], []];
  server = createServer((incoming, response) => {
    const { method, url, headers } = incoming;
    void bodyOf(incoming)
      .then((body) => {
        seen.push({ method, url, headers, body });
        if (url === "/cors") response.setHeader("access-control-allow-origin", "https://its.own");
        if (url !== "/endless") response.end(`answer to ${url}`);
        else response.write("a part");
      })
      .catch(() => undefined);
  });
  server.on("upgrade", (incoming: IncomingMessage, socket: Socket) => {
    seen.push({ method: "UPGRADE", url: incoming.url, headers: incoming.headers, body: "" });
    socket.on("error", () => undefined);
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello",
    );
    socket.pipe(socket);
  });
  server.on("connection", (socket: Socket) => sockets.push(socket));
  await once(server.listen(0, "127.0.0.1"), "listening");
  rig = await Rig.start({ neighbour, neighbourPlain: { port: 0, address: "127.0.0.1" } });
  token = await rig.gateway.token(sandboxA);
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [serverPort()] });
});
afterEach(async () => {
  await rig[Symbol.asyncDispose]();
  server.closeAllConnections();
  server.close();
});

const isPrivate = (): void => rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [] });

async function ask(path: string, headers: Record<string, string> = {}) {
  const call = request({ port: rig.neighbourPort, path, headers, agent: false });
  call.end();
  const [answer] = (await once(call, "response")) as [IncomingMessage];
  return { status: answer.statusCode, headers: answer.headers, body: await bodyOf(answer) };
}

/** Sends raw bytes, half-closes nothing, and answers the first line that comes back. */
async function raw(text: string): Promise<string> {
  const socket = connect(rig.neighbourPort, "127.0.0.1");
  socket.write(text);
  const [first] = (await once(socket, "data")) as [Buffer];
  socket.destroy();
  return first.toString().split("\r\n")[0] ?? "";
}

const smuggled = "POST /store HTTP/1.1\r\nhost: x\r\ncontent-length: 700\r\n\r\n";
const bodies = {
  chunked: `transfer-encoding: chunked\r\n\r\n${smuggled.length.toString(16)}\r\n${smuggled}\r\n0\r\n\r\n`,
  "with a length": `content-length: ${smuggled.length}\r\n\r\n${smuggled}`,
};
const methods = ["GET", "DELETE", "OPTIONS", "HEAD", "POST", "PUT", "PATCH", "PROPFIND", "TRACE"];

for (const [how, framed] of Object.entries(bodies))
  it.each(methods)(`the body of a stranger's %s, ${how}, stays a body`, async (method) => {
    await raw(`${method} /first HTTP/1.1\r\nhost: x\r\n${framed}`);
    expect((await ask("/mine", { "x-key": "mine" })).body).toBe("answer to /mine");
    expect(seen.map(({ method: seenMethod, url, body }) => [seenMethod, url, body])).toEqual([
      [method, "/first", smuggled],
      ["GET", "/mine", ""],
    ]);
    expect(sockets).toHaveLength(2);
  });

it("a body cut off in the middle ends its connection, and nothing of it is answered", async () => {
  const socket = connect(rig.neighbourPort, "127.0.0.1");
  socket.write(`GET /first HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n${smuggled}`);
  await until(() => sockets.length === 1);
  socket.destroy();
  expect((await ask("/mine")).body).toBe("answer to /mine");
  expect(seen).toHaveLength(1);
});

it("a transfer encoding that cannot be passed on is refused", async () => {
  const refused = "POST /first HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n";
  expect(await raw(refused)).toContain("501");
  expect(seen).toEqual([]);
});

it("the neighbour's token opens a port, and neither it nor the neighbour's headers reach the server", async () => {
  isPrivate();
  expect((await ask("/stranger")).status).toBe(401);
  const headers = { "x-key": "mine", authorization: "Basic of-the-server", cookie: "a=b" };
  const answer = await ask("/mine", headers);
  expect([answer.status, answer.headers["access-control-allow-origin"]]).toEqual([200, "*"]);
  expect(seen).toHaveLength(1);
  expect(seen[0]?.headers).toMatchObject({
    host: name(),
    "x-forwarded-host": name(),
    "x-forwarded-proto": "http",
    authorization: "Basic of-the-server",
    cookie: "a=b",
  });
  expect(JSON.stringify(seen)).not.toContain(token);
  expect(JSON.stringify(seen)).not.toContain("x-key");
});

it("takes requests at the port's own domain over TLS and HTTP/2, where the server's own headers win", async () => {
  isPrivate();
  using session = http2Client(rig, `${serverPort()}-${sandboxA}`);
  const headers = { ":path": "/cors", ":authority": name(), "x-key": "mine" };
  const reply = await replyOf(session.request(headers));
  expect(reply).toMatchObject({ status: 200, body: "answer to /cors" });
  expect(reply.headers["access-control-allow-origin"]).toBe("https://its.own");
  expect(seen[0]?.headers["x-forwarded-proto"]).toBe("https");
});

it("answers all at its own address, health paths too", async () => {
  expect((await ask("/own")).body).toBe("own true");
  expect((await ask("/healthz")).body).toBe("answer to /healthz");
});

it("drops an open answer and an upgraded connection, and tells when they have ended", async () => {
  isPrivate();
  const ended: string[] = [];
  const endless = ask("/endless", { "x-key": "mine" }).catch(() => "cut");
  await until(() => seen.length === 1);
  const socket = connect(rig.neighbourPort, "127.0.0.1");
  socket.write(
    "GET /ws HTTP/1.1\r\nhost: x\r\nx-key: mine\r\nconnection: upgrade\r\nupgrade: websocket\r\n" +
      "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
  );
  const all = readAll(socket);
  await until(() => socket.bytesRead > 0 && seen.length === 2);
  for (const [index, one] of carried.entries()) one.whenEnded(() => ended.push(`ended ${index}`));
  expect(ended).toEqual([]);
  for (const one of carried) one.drop();
  expect(await endless).toBe("cut");
  expect(await all).toContain("hello");
  await until(() => ended.length === 2);
  const late: string[] = [];
  carried[0]?.whenEnded(() => late.push("at once"));
  expect(late).toEqual(["at once"]);
});

it("drops a request only until it has ended: its connection carries others then", async () => {
  const socket = connect(rig.neighbourPort, "127.0.0.1");
  const all = readAll(socket);
  socket.write("GET /first HTTP/1.1\r\nhost: x\r\n\r\n");
  await until(() => socket.bytesRead > 0);
  await new Promise<void>((resolve) => carried[0]?.whenEnded(resolve));
  carried[0]?.drop();
  socket.write("GET /second HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  expect(await all).toContain("answer to /second");
});

it("gets no new connection while the edge drains", async () => {
  rig.edge.drain();
  // Connections that are established as the drain begins are still taken or reset.
  const failure = () => ask("/mine").then(() => "", String);
  await expect.poll(failure).toContain("ECONNREFUSED");
  expect((await rig.ask({ path: "/v1/store" })).status).toBe(200);
});
