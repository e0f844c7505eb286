import { once } from "node:events";
import http2 from "node:http2";
import { expect, test } from "vitest";
import { sandboxA, sandboxB } from "./testing/fake-gateway.ts";
import {
  askHttp2,
  bareHttp2,
  frame,
  frameTypes,
  http2Client,
  open,
  requestOf,
} from "./testing/http2-client.ts";
import { Rig, until } from "./testing/rig.ts";

test("a request by HTTP/2 reaches the agent as HTTP/1.1, and its answer comes back", async () => {
  await using rig = await Rig.start();
  using session = http2Client(rig);
  const headers = { ":method": "POST", ":path": "/v1/files?path=/a/../b//c%2Fd", cookie: ["a=1", "b=2"] };
  const answer = await askHttp2(
    rig,
    session,
    { ...headers, "x-file-mode": "0600", "x-cloche-exec-id": "forged" },
    "hello",
  );
  expect(session.alpnProtocol).toBe("h2");
  expect(answer.status).toBe(200);
  expect(answer.headers["x-request-id"]).toMatch(/^req-/);
  expect(rig.seen[0]).toMatchObject({ method: "POST", url: "/v1/files?path=/a/../b//c%2Fd", body: "hello" });
  expect(rig.seen[0]?.headers).toMatchObject({ host: rig.host(), cookie: "a=1; b=2", "x-file-mode": "0600" });
  expect(rig.seen[0]?.rawHeaders.join(" ")).not.toMatch(/forged|:path|:authority/);
});

test("a stream that waits holds up no other, nor does one whose body nobody takes", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    if (request.url === "/v1/waits") return;
    if (request.url === "/v1/unread") return void request.pause();
    response.end("quick");
  };
  using session = http2Client(rig);
  open(rig, session, { ":path": "/v1/waits" });
  for (let index = 0; index < 6; index += 1) {
    const unread = open(rig, session, { ":method": "POST", ":path": "/v1/unread" });
    unread.on("error", () => undefined);
    unread.write(Buffer.alloc(4 * 1024 * 1024));
  }
  const quick = Array.from({ length: 50 }, () =>
    askHttp2(rig, session, { ":method": "POST", ":path": "/v1/x" }, Buffer.alloc(100_000)),
  );
  for (const answer of await Promise.all(quick)) expect(answer.body).toBe("quick");
});

test("a large body streams both ways unchanged", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => void request.pipe(response);
  using session = http2Client(rig);
  const sent = Buffer.alloc(6 * 1024 * 1024, "0123456789");
  for (const headers of [{}, { "content-length": sent.length }]) {
    const answer = await askHttp2(rig, session, { ":method": "POST", ":path": "/v1/x", ...headers }, sent);
    expect(answer.body).toHaveLength(sent.length);
    expect(answer.body).toBe(sent.toString());
  }
});

test("another sandbox than the connection's own is 421, and the connection goes on", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), sandboxId: sandboxB });
  using session = http2Client(rig);
  expect((await askHttp2(rig, session, { ":authority": rig.host(sandboxB), ":path": "/v1/x" })).status).toBe(
    421,
  );
  expect((await askHttp2(rig, session, { ":path": "/v1/x" })).status).toBe(200);
});

test("what could not be HTTP/1.1 is refused before it reaches the agent", async () => {
  await using rig = await Rig.start();
  using session = http2Client(rig);
  const wrong: http2.OutgoingHttpHeaders[] = [
    { ":path": "/v1/x", host: "another.example" },
    { ":path": "/v1/x HTTP/1.1\r\nx: y" },
    { ":path": "/v1/a b" },
    { ":path": "*", ":method": "OPTIONS" },
    { ":method": "CONNECT", ":path": undefined, ":scheme": undefined },
  ];
  for (const headers of wrong) {
    const refused = await askHttp2(rig, session, headers).then(
      ({ status }) => status,
      () => "reset",
    );
    expect([400, 404, "reset"], JSON.stringify(headers)).toContain(refused);
  }
  expect(rig.seen).toEqual([]);
  expect((await askHttp2(rig, session, { ":path": "/v1/x" })).status).toBe(200);
});

test("too many headers are 431 and a long path 414, of that stream alone", async () => {
  await using rig = await Rig.start();
  using session = http2Client(rig);
  const many = Object.fromEntries(Array.from({ length: 250 }, (_, index) => [`h-${index}`, "v"]));
  expect((await askHttp2(rig, session, { ":path": "/v1/x", ...many })).status).toBe(431);
  expect((await askHttp2(rig, session, { ":path": `/${"x".repeat(40_000)}` })).status).toBe(414);
  expect((await askHttp2(rig, session, { ":path": "/v1/x" })).status).toBe(200);
});

test("a client that resets its exec's stream kills the command, and the other streams go on", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    if (request.url !== "/v1/exec") setTimeout(() => response.end("other"), 100);
  };
  using session = http2Client(rig);
  const other = askHttp2(rig, session, { ":path": "/v1/x" });
  const exec = open(rig, session, { ":method": "POST", ":path": "/v1/exec" });
  exec.on("error", () => undefined);
  const asked = once(rig.agent, "request");
  exec.end('{"cmd":["sleep","9"]}');
  await asked;
  exec.close(http2.constants.NGHTTP2_CANCEL);
  await until(() => rig.aborted.length === 1);
  expect((await other).body).toBe("other");
});

test("a client that goes away without a word kills its exec", async () => {
  await using rig = await Rig.start();
  rig.onAgent = () => undefined;
  const socket = await bareHttp2(rig);
  socket.write(frame(frameTypes.headers, 5, 1, requestOf(rig, "POST", "/v1/exec")));
  await once(rig.agent, "request");
  // The kernel does the same for a killed process.
  socket.end();
  await until(() => rig.aborted.length === 1);
});

test("an answer that breaks off is a reset stream, not a short body", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (_request, response) => {
    response.writeHead(200);
    response.write("half");
    setTimeout(() => response.destroy(), 20);
  };
  using session = http2Client(rig);
  const stream = open(rig, session, { ":path": "/v1/x" });
  stream.resume();
  const [error] = (await once(stream, "error")) as [NodeJS.ErrnoException];
  expect(error.message).toContain("INTERNAL_ERROR");
});

test("a WebSocket by extended CONNECT passes bytes both ways, beside other streams", async () => {
  await using rig = await Rig.startChannel();
  using session = http2Client(rig);
  await once(session, "remoteSettings");
  expect(session.remoteSettings.enableConnectProtocol).toBe(true);
  const headers = { ":method": "CONNECT", ":protocol": "websocket", ":scheme": "https", ":path": "/v1/pty" };
  const { authorization } = await rig.bearer();
  const stream = open(
    rig,
    session,
    { ...headers, authorization, "sec-websocket-version": "13" },
    { endStream: false },
  );
  const [answer] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
  expect(answer[":status"]).toBe(200);
  expect(answer["sec-websocket-accept"]).toBeUndefined();
  let text = "";
  stream.on("data", (chunk: Buffer) => (text += chunk.toString()));
  stream.write("there");
  await until(() => text === "hello there");
  expect(rig.seen[0]?.headers).toMatchObject({ upgrade: "websocket", "sec-websocket-version": "13" });
  expect(rig.seen[0]?.headers["sec-websocket-key"]).toMatch(/^[\w+/]{22}==$/);
  stream.end();
  await once(stream, "close");
  expect((await askHttp2(rig, session, { ":path": "/v1/x", authorization })).status).toBe(200);
});

test("an answer before the whole body was read is heard, and the connection goes on", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    if (request.method !== "POST") return void response.end("ok");
    response.writeHead(413, { "content-length": "3", connection: "close" });
    response.end("too");
  };
  using session = http2Client(rig);
  const body = Buffer.alloc(20 * 1024 * 1024);
  const answer = await askHttp2(
    rig,
    session,
    { ":method": "POST", ":path": "/v1/files/archive?path=/x" },
    body,
  );
  expect([answer.status, answer.body]).toEqual([413, "too"]);
  expect((await askHttp2(rig, session, { ":path": "/v1/x" })).body).toBe("ok");
});

test("HEAD, 204 and 304 end with their head, and a request without a body is whole", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    response.writeHead(Number(request.url?.slice(4)), { "x-a": request.method });
    response.end();
  };
  using session = http2Client(rig);
  for (const status of [200, 204, 304]) {
    for (const method of ["HEAD", "GET", "DELETE"]) {
      const answer = await askHttp2(rig, session, { ":method": method, ":path": `/v1/${status}` });
      expect(answer).toMatchObject({ status, body: "", headers: { "x-a": method } });
    }
  }
  const health = await askHttp2(rig, session, { ":authority": "localhost", ":path": "/healthz" });
  expect(health.status).toBe(200);
});

test("HTTP/2 with prior knowledge is spoken without TLS, beside HTTP/1.1", async () => {
  await using rig = await Rig.start();
  const session = http2.connect(`http://127.0.0.1:${rig.plainPort}`);
  const path = `/sandboxes/${sandboxA}/v1/x`;
  const answers = Array.from({ length: 20 }, () =>
    askHttp2(rig, session, { ":authority": "127.0.0.1", ":method": "POST", ":path": path }, "body"),
  );
  for (const { status, body } of await Promise.all(answers)) {
    expect(status).toBe(200);
    expect(JSON.parse(body)).toMatchObject({ url: "/v1/x", body: "body" });
  }
  expect((await rig.askPlain(path)).status).toBe(200);
  session.destroy();
});
