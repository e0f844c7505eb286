import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import https from "node:https";
import net from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "../testing/fake-gateway.ts";
import { Rig, readAll, until } from "../testing/rig.ts";

const mebibyte = Buffer.alloc(1024 * 1024, "x");

/** The next request that the agent gets. */
const nextAsked = (rig: Rig): Promise<[IncomingMessage, ServerResponse]> =>
  new Promise((resolve) => {
    rig.onAgent = (request, response) => resolve([request, response]);
  });

test("an answer streams: its head and each event come at once", async () => {
  await using rig = await Rig.start();
  const asked = nextAsked(rig);
  const request = rig.request({ path: "/v1/exec", method: "POST", headers: { accept: "text/event-stream" } });
  request.end("{}");
  const [, response] = await asked;
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.flushHeaders();
  const [answer] = (await once(request, "response")) as [IncomingMessage];
  response.write("event: stdout\ndata: 1\n\n");
  expect(String((await once(answer, "data"))[0])).toContain("data: 1");
  response.write("event: stdout\ndata: 2\n\n");
  expect(String((await once(answer, "data"))[0])).toContain("data: 2");
  response.end();
  await once(answer, "end");
});

test("a request body streams to the agent before it is whole", async () => {
  await using rig = await Rig.start();
  const asked = nextAsked(rig);
  const request = rig.request({ path: "/v1/files/archive?path=/x", method: "POST" });
  request.write("first");
  const [seen, response] = await asked;
  expect(seen.headers["transfer-encoding"]).toBe("chunked");
  expect(String((await once(seen, "data"))[0])).toBe("first");
  request.write("second");
  expect(String((await once(seen, "data"))[0])).toBe("second");
  request.end();
  response.end("done");
  await once(request, "response");
});

test("a slow reader slows the agent, and a slow agent slows the client: memory stays bounded", async () => {
  await using rig = await Rig.start();
  const down = nextAsked(rig);
  const reader = rig.request({ path: "/v1/files?path=/big" });
  reader.end();
  const [, response] = await down;
  let sent = 0;
  const pour = (): void => {
    while (sent < 200 && response.write(mebibyte)) sent += 1;
    if (sent < 200) response.once("drain", pour);
  };
  const [answer] = await Promise.all([once(reader, "response"), Promise.resolve(pour())]);
  (answer[0] as IncomingMessage).pause();
  await new Promise((resolve) => setTimeout(resolve, 150));
  expect(sent).toBeLessThan(40);
  response.destroy();
  (answer[0] as IncomingMessage).on("error", () => undefined).resume();

  const up = nextAsked(rig);
  const writer = rig.request({ path: "/v1/files/archive?path=/x", method: "POST" });
  writer.on("error", () => undefined);
  let written = 0;
  const push = (): void => {
    while (written < 200 && writer.write(mebibyte)) written += 1;
    if (written < 200) writer.once("drain", push);
  };
  push();
  await up;
  await new Promise((resolve) => setTimeout(resolve, 150));
  expect(written).toBeLessThan(40);
  writer.destroy();
});

test("32 MiB pass whole in both directions", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    response.writeHead(200);
    request.pipe(response);
  };
  const request = rig.request({ path: "/v1/files/archive?path=/x", method: "POST" });
  const answered = once(request, "response") as Promise<[IncomingMessage]>;
  const pour = async (): Promise<void> => {
    for (let count = 0; count < 32; count += 1) if (!request.write(mebibyte)) await once(request, "drain");
    request.end();
  };
  const poured = pour();
  const [answer] = await answered;
  let received = 0;
  for await (const chunk of answer) received += (chunk as Buffer).length;
  await poured;
  expect(received).toBe(32 * 1024 * 1024);
});

test("an early answer reaches a client that is still sending", async () => {
  await using rig = await Rig.start({ limits: { lingerMs: 200 } });
  rig.onAgent = (_request, response) => {
    response.writeHead(413, { "content-type": "application/json" });
    response.end('{"code":"resource_exhausted","message":"too large"}');
  };
  const request = rig.request({
    path: "/v1/files?path=/x",
    method: "POST",
    headers: { "content-length": "50000000" },
  });
  request.on("error", () => undefined);
  request.write(mebibyte);
  const [answer] = (await once(request, "response")) as [IncomingMessage];
  expect(answer.statusCode).toBe(413);
  expect(answer.headers.connection).toBe("close");
  let body = "";
  for await (const chunk of answer) body += String(chunk);
  expect(body).toContain("too large");
});

test("Expect: 100-continue is the agent's to answer", async () => {
  await using rig = await Rig.start();
  const head = (path: string): string =>
    `POST ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n`;
  const socket = await rig.connect();
  socket.write(head("/v1/x"));
  expect(String((await once(socket, "data"))[0])).toBe("HTTP/1.1 100 Continue\r\n\r\n");
  socket.write("hello");
  expect(await readAll(socket)).toContain('"body":"hello"');

  rig.agent.on("checkContinue", (_request: IncomingMessage, response: ServerResponse) => {
    response.writeHead(401, { "content-length": 0, connection: "close" });
    response.end();
  });
  const refused = await rig.raw(head("/v1/y"));
  expect(refused).toMatch(/^HTTP\/1\.1 401 /);
  expect(refused).not.toContain("100 Continue");
  expect(await rig.raw(`GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nExpect: tea\r\n\r\n`)).toMatch(
    /^HTTP\/1\.1 417 /,
  );
});

test("WebSocket and other bytes pass both ways after 101", async () => {
  await using rig = await Rig.start();
  const socket = await rig.connect();
  socket.write(
    `GET /v1/pty HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\nAuthorization: Bearer t\r\n\r\nearly `,
  );
  let text = "";
  socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
  await until(() => text.includes("hello early "));
  expect(text).toMatch(/^HTTP\/1\.1 101 [\s\S]*x-request-id: req-/);
  socket.write("ping");
  await until(() => text.endsWith("ping"));
  expect(rig.seen[0]?.headers).toMatchObject({
    upgrade: "websocket",
    "sec-websocket-key": "k",
    authorization: "Bearer t",
  });
  socket.end();
  if (!socket.closed) await once(socket, "close");
});

test("a refused Upgrade comes back as the answer it is", async () => {
  await using rig = await Rig.start();
  rig.agent.removeAllListeners("upgrade");
  const text = await rig.raw(
    `GET /v1/pty HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
  );
  expect(text).toMatch(/^HTTP\/1\.1 200 [\s\S]*"url":"\/v1\/pty"/);
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED" });
  const refused = await rig.raw(
    `GET /v1/pty HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
  );
  expect(refused).toMatch(/^HTTP\/1\.1 503 [\s\S]*SANDBOX_STATE_SUSPENDED/);
});

const execBody = JSON.stringify({ cmd: ["sleep", "60"] });

test("a client that goes away aborts its exec, with its own token and exec id", async () => {
  await using rig = await Rig.start();
  for (const leave of ["destroy", "reset", "end"] as const) {
    const asked = nextAsked(rig);
    const tcp = net.connect(rig.port, "127.0.0.1");
    const socket = await rig.connectOver(tcp);
    socket.write(
      `POST /v1/exec HTTP/1.1\r\nHost: ${rig.host()}\r\nAuthorization: Bearer t\r\nContent-Length: ${execBody.length}\r\n\r\n${execBody}`,
    );
    const [seen] = await asked;
    rig.aborted.length = 0;
    if (leave === "reset") tcp.resetAndDestroy();
    else socket[leave]();
    await until(() => rig.aborted.length === 1);
    expect(rig.aborted[0]?.method).toBe("POST");
    expect(rig.aborted[0]?.headers.authorization).toBe("Bearer t");
    expect(rig.aborted[0]?.headers["x-cloche-exec-id"]).toBe(seen.headers["x-cloche-exec-id"]);
    expect(seen.headers["x-cloche-exec-id"]).toMatch(/./);
  }
});

test("an abort that overtakes its exec is sent again", async () => {
  await using rig = await Rig.start();
  rig.onAgent = () => undefined;
  let asked = 0;
  rig.agent.prependListener("request", (request: IncomingMessage, response: ServerResponse) => {
    if (request.url !== "/cloche/exec-abort") return;
    asked += 1;
    if (asked < 3) {
      response.writeHead(404);
      response.end();
    }
  });
  const request = rig.request({ method: "POST", path: "/v1/exec" });
  request.on("error", () => undefined);
  request.end(execBody);
  await once(rig.agent, "request");
  request.destroy();
  await until(() => asked === 3);
});

test("nothing is aborted when the answer was whole, the agent failed, the sandbox moved or the edge stops", async () => {
  await using rig = await Rig.start();
  const exec = (): Promise<{ status: number }> =>
    rig.ask({ method: "POST", path: "/v1/exec", body: execBody });
  await exec();
  const fails = nextAsked(rig);
  const failed = exec();
  (await fails)[0].socket.destroy();
  expect((await failed).status).toBe(503);
  const moves = nextAsked(rig);
  const moved = exec();
  await moves;
  rig.gateway.set({ sandboxId: sandboxA, epoch: 2n });
  expect((await moved).status).toBe(503);
  const stops = nextAsked(rig);
  const stopped = exec().catch((error: unknown) => error);
  await stops;
  await rig.edge.stop();
  expect(await stopped).toBeInstanceOf(Error);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(rig.aborted).toEqual([]);
});

test("other requests of a client that goes away just end", async () => {
  await using rig = await Rig.start({ limits: { halfClosedGraceMs: 20 } });
  const asked = nextAsked(rig);
  const request = rig.request({ path: "/v1/services/x/logs?follow=true" });
  request.on("error", () => undefined);
  request.end();
  const [seen] = await asked;
  request.destroy();
  await once(seen.socket, "close");
  expect(rig.aborted).toEqual([]);
});

test.each([
  ["known", { "content-length": 100 }],
  // Only the end of the connection tells this client that the answer is not complete.
  ["unknown", {}],
])(
  "an agent that dies in the middle of an answer of %s length ends the client's connection short",
  async (_length, headers) => {
    await using rig = await Rig.start();
    rig.onAgent = (_request, response) => {
      response.writeHead(200, headers);
      response.write("part", () => response.destroy());
    };
    await expect(rig.ask()).rejects.toThrow(/aborted|socket hang up/);
  },
);

test("answers that are not plainly framed are refused, not passed on", async () => {
  await using rig = await Rig.start();
  rig.agent.removeAllListeners("request");
  let answer = "";
  rig.agent.on("request", (request: IncomingMessage) => request.socket.end(answer));
  const answers = [
    "rubbish\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: evil\r\nContent-Length: 2\r\n\r\nok",
    `HTTP/1.1 200 OK\r\nX: ${"x".repeat(100_000)}\r\n\r\n`,
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "",
  ];
  for (answer of answers) {
    const { status, body } = await rig.ask();
    expect(status, answer.slice(0, 80)).toBe(503);
    expect(JSON.parse(body)).toMatchObject({ code: "unavailable" });
  }
});

test("a connection that the agent closed while idle is replaced without the client seeing it", async () => {
  await using rig = await Rig.start();
  const agent = new https.Agent({ keepAlive: true });
  const sockets = new Set<IncomingMessage["socket"]>();
  let answersLeft = 1;
  rig.onAgent = (request, response) => {
    // The second request on a connection meets a dead agent process.
    if (sockets.has(request.socket)) {
      request.socket.destroy();
      return;
    }
    sockets.add(request.socket);
    answersLeft -= 1;
    request.resume();
    request.on("end", () => response.end("ok"));
  };
  for (const method of ["GET", "PUT", "DELETE"]) {
    expect((await rig.ask({ agent, method: "GET", path: "/v1/warm" })).status).toBe(200);
    const body = method === "PUT" ? { body: '{"value":1}', headers: { "content-length": "11" } } : {};
    expect((await rig.ask({ agent, method, path: "/v1/store/k", ...body })).status, method).toBe(200);
  }
  expect((await rig.ask({ agent, path: "/v1/warm" })).status).toBe(200);
  const post = await rig.ask({ agent, method: "POST", path: "/v1/exec", body: execBody });
  expect(post.status).toBe(503);
  expect(post.body).toContain("may run on");
  agent.destroy();
});

test("an agent that cannot be reached is 503", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, agentPort: 1, epoch: 2n });
  const answer = await rig.ask({ method: "POST", path: "/v1/exec", body: execBody });
  expect(answer.status).toBe(503);
  expect(answer.headers["retry-after"]).toBe("1");
});

test("HEAD, 204 and 304 have no body, and the connection goes on", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (request, response) => {
    response.writeHead(Number(request.url?.slice(4)), { "x-a": "1" });
    response.end(request.method === "HEAD" ? undefined : "");
  };
  const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
  for (const status of [200, 204, 304, 200]) {
    for (const method of ["HEAD", "GET"]) {
      const answer = await rig.ask({ agent, method, path: `/v1/${status}` });
      expect(answer).toMatchObject({ status, body: "" });
    }
  }
  agent.destroy();
});

test("every byte value passes unchanged, in short and long bodies of known and unknown length", async () => {
  await using rig = await Rig.start();
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, index) => index));
  const long = Buffer.concat(Array.from({ length: 100 }, () => bytes));
  rig.onAgent = (request, response) => {
    const body = request.url?.includes("long") ? long : bytes;
    if (request.url?.includes("known")) response.setHeader("content-length", body.length);
    else response.write(body.subarray(0, 1));
    response.end(request.url?.includes("known") ? body : body.subarray(1));
  };
  for (const path of ["/v1/known", "/v1/long-known", "/v1/x", "/v1/long"]) {
    const request = rig.request({ path });
    request.end();
    const [answer] = (await once(request, "response")) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of answer) chunks.push(chunk as Buffer);
    expect(Buffer.concat(chunks).equals(path.includes("long") ? long : bytes), path).toBe(true);
  }
});

test("HTTP/1.0 clients get an answer they can read", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (_request, response) => {
    response.write("a");
    response.end("b");
  };
  const text = await rig.raw(`GET /v1/x HTTP/1.0\r\nHost: ${rig.host()}\r\n\r\n`);
  expect(text).toMatch(/^HTTP\/1\.1 200 [\s\S]*\r\n\r\nab$/);
});
