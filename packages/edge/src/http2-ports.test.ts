/**
 * Servers on a port that speak HTTP/2 without TLS, such as gRPC servers; and HTTP/1.1 servers for clients of HTTP/2.
 */
import { once } from "node:events";
import http from "node:http";
import http2, { type ServerHttp2Stream } from "node:http2";
import net, { type AddressInfo, type Server, type Socket } from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { askHttp2, frame, frameTypes, http2Client, replyOf } from "./testing/http2-client.ts";
import { Rig, until } from "./testing/rig.ts";

type Served = { port: number; opened: () => number } & Disposable;

async function served(server: Server): Promise<Served> {
  const sockets = new Set<Socket>();
  let opened = 0;
  server.on("connection", (socket: Socket) => {
    opened += 1;
    sockets.add(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    opened: () => opened,
    [Symbol.dispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

/** A server that speaks only HTTP/2, as gRPC servers do. */
async function http2Server(
  onStream: (stream: ServerHttp2Stream, headers: http2.IncomingHttpHeaders) => void,
): Promise<Served> {
  const server = http2.createServer();
  server.on("stream", (stream, headers) => {
    stream.on("error", () => undefined);
    onStream(stream, headers);
  });
  server.on("sessionError", () => undefined);
  return served(server);
}

const echo = (stream: ServerHttp2Stream, headers: http2.IncomingHttpHeaders): void => {
  stream.respond({ ":status": 200, "x-method": headers[":method"] ?? "", "x-path": headers[":path"] ?? "" });
  stream.pipe(stream);
};

/** A request to a port by HTTP/2, with the sandbox's token. */
async function portClient(rig: Rig, port: number) {
  const label = `${port}-${sandboxA}`;
  const session = http2Client(rig, label);
  const headers = { ":authority": rig.host(label), ...(await rig.bearer()) };
  return Object.assign(session, {
    ask: (more: http2.OutgoingHttpHeaders, body?: string | Buffer) =>
      askHttp2(rig, session, { ...headers, ...more }, body),
    call: (more: http2.OutgoingHttpHeaders = {}) => {
      const grpc = {
        ":method": "POST",
        ":path": "/x.Y/Z",
        "content-type": "application/grpc",
        te: "trailers",
      };
      const stream = session.request({ ...headers, ...grpc, ...more }, { endStream: false });
      stream.on("error", () => undefined);
      return stream;
    },
  });
}

test("gRPC streams both ways, and its trailers arrive", async () => {
  await using rig = await Rig.start();
  let seen: http2.IncomingHttpHeaders = {};
  using server = await http2Server((stream, headers) => {
    seen = headers;
    stream.respond({ "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.on("data", (chunk: Buffer) => stream.write(`seen ${chunk}`));
    stream.once("end", () => stream.end());
    stream.once("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0", "x-two": ["a", "b"] }));
  });
  using client = await portClient(rig, server.port);
  const call = client.call();
  const trailers = once(call, "trailers") as Promise<[http2.IncomingHttpHeaders]>;
  for (const word of ["one", "two"]) {
    call.write(word);
    expect(String((await once(call, "data"))[0])).toBe(`seen ${word}`);
  }
  call.end();
  expect((await trailers)[0]).toMatchObject({ "grpc-status": "0", "x-two": "a, b" });
  expect(seen).toMatchObject({ te: "trailers", "x-forwarded-proto": "https", ":path": "/x.Y/Z" });
  expect(seen[":authority"]).toBe(rig.host(`${server.port}-${sandboxA}`));
  expect(seen.authorization).toBeUndefined();
});

test("a status without a message, a server's reset and a client's cancel are passed on as they are", async () => {
  await using rig = await Rig.start();
  const { NGHTTP2_CANCEL, NGHTTP2_REFUSED_STREAM, NGHTTP2_FLAG_END_STREAM } = http2.constants;
  let cancelled = false;
  using server = await http2Server((stream, headers) => {
    stream.on("aborted", () => (cancelled = true));
    const head = { "content-type": "application/grpc" };
    if (headers["x-do"] === "status") stream.respond({ ...head, "grpc-status": "5" }, { endStream: true });
    else stream.respond(head);
    if (headers["x-do"] === "reset") stream.write("part", () => stream.close(NGHTTP2_REFUSED_STREAM));
    if (headers["x-do"] === "wait") stream.write("part");
  });
  using client = await portClient(rig, server.port);
  const alone = client.call({ "x-do": "status" });
  const [head, flags] = (await once(alone, "response")) as [http2.IncomingHttpHeaders, number];
  expect([head["grpc-status"], flags & NGHTTP2_FLAG_END_STREAM]).toEqual(["5", NGHTTP2_FLAG_END_STREAM]);

  const reset = client.call({ "x-do": "reset" });
  reset.resume();
  await new Promise((resolve) => reset.once("close", resolve));
  expect(reset.rstCode).toBe(NGHTTP2_REFUSED_STREAM);

  cancelled = false;
  const waiting = client.call({ "x-do": "wait" });
  await once(waiting, "data");
  waiting.close(NGHTTP2_CANCEL);
  await until(() => cancelled);
  expect(server.opened()).toBe(1);
});

test("a server of HTTP/2 alone is asked so, whatever its client speaks and however its body comes", async () => {
  await using rig = await Rig.start();
  using server = await http2Server(echo);
  const label = `${server.port}-${sandboxA}`;
  const headers = await rig.bearer();
  const first = await rig.ask({ label, headers, method: "PUT", path: "/a?b", body: "small" });
  expect(first).toMatchObject({
    status: 200,
    body: "small",
    headers: { "x-method": "PUT", "x-path": "/a?b" },
  });
  expect((await rig.ask({ label, headers })).status).toBe(200);
  const before = server.opened();
  const large = Buffer.alloc(3 * 1024 * 1024, "0123456789");
  using client = await portClient(rig, server.port);
  for (const body of ["small", large]) {
    const answer = await client.ask({ ":method": "POST", ":path": "/c" }, body);
    expect(answer.body === body.toString()).toBe(true);
  }
  expect(server.opened(), "its protocol is known now").toBe(before);
});

test("a body that streams is not lost where it comes out in its middle that the server speaks HTTP/2 alone", async () => {
  await using rig = await Rig.start();
  using server = await http2Server(echo);
  using client = await portClient(rig, server.port);
  const call = client.call({ "content-type": "text/plain" });
  call.write("first ");
  const reply = replyOf(call);
  await until(() => server.opened() > 1);
  call.end("last");
  expect((await reply).body).toBe("first last");
});

test("a server of HTTP/1.1 works from a client of HTTP/2, and one that took its port's place too", async () => {
  await using rig = await Rig.start();
  const http1 = (): http.Server =>
    http.createServer((request, response) => {
      response.setHeader("x-version", request.httpVersion);
      request.pipe(response);
    });
  let port = 0;
  {
    using server = await http2Server(echo);
    port = server.port;
    using client = await portClient(rig, port);
    expect((await client.ask({ ":method": "POST", ":path": "/" }, "a")).body).toBe("a");
  }
  const server = http1();
  server.listen(port, "127.0.0.1");
  await once(server, "listening");
  using client = await portClient(rig, port);
  const body = Buffer.alloc(1024 * 1024, "x");
  for (let round = 0; round < 3; round += 1) {
    const answer = await client.ask({ ":method": "POST", ":path": "/" }, body);
    expect([answer.status, answer.headers["x-version"], answer.body.length]).toEqual([
      200,
      "1.1",
      body.length,
    ]);
  }
  const refused = await replyOf(client.call().end());
  expect(refused.status).toBe(503);
  server.closeAllConnections();
  server.close();
});

test("a port that nothing listens on, and one without a token, answer gRPC as they answer all", async () => {
  await using rig = await Rig.start();
  using client = await portClient(rig, 1);
  const closed = await replyOf(client.call().end());
  expect([closed.status, closed.body]).toEqual([503, expect.stringContaining("nothing listens on port 1")]);
  expect((await replyOf(client.call({ authorization: "Bearer x" }).end())).status).toBe(401);
});

test("a hostile server of HTTP/2 may not send too many headers", async () => {
  await using rig = await Rig.start();
  using many = await http2Server((stream) => {
    const headers = Object.fromEntries(Array.from({ length: 5_000 }, (_, index) => [`h-${index}`, "v"]));
    stream.respond({ ...headers, "content-type": "application/grpc" });
    stream.end("body");
  });
  using client = await portClient(rig, many.port);
  expect((await replyOf(client.call().end())).status).toBe(503);
});

test.each([
  ["settings", frame(frameTypes.settings, 0, 0)],
  ["window updates", frame(frameTypes.windowUpdate, 0, 0, Buffer.of(0, 0, 0, 1))],
])("a hostile server that sends %s without end is cut off", async (_what, one) => {
  await using rig = await Rig.start();
  let isOpen = true;
  using flood = await served(
    net.createServer((socket) => {
      socket.on("error", () => undefined).resume();
      socket.write(frame(frameTypes.settings, 0, 0));
      const pour = setInterval(() => socket.write(Buffer.concat(Array<Buffer>(500).fill(one))), 5);
      socket.once("close", () => {
        clearInterval(pour);
        isOpen = false;
      });
    }),
  );
  using flooded = await portClient(rig, flood.port);
  expect((await replyOf(flooded.call().end())).status).toBe(503);
  await until(() => !isOpen);
});
