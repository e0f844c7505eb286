import { once } from "node:events";
import http2 from "node:http2";
import https from "node:https";
import net from "node:net";
import { expect, it, test } from "vitest";
import { askHttp2, http2Client } from "./testing/http2-client.ts";
import { baseDomain, readAll, Rig, until } from "./testing/rig.ts";

const idleMs = 1_500;
const one = () => new https.Agent({ keepAlive: true, maxSockets: 1 });

it("is not ready while it drains, and ends each connection with its answer", async () => {
  await using rig = await Rig.start();
  let release: (() => void) | undefined;
  rig.onAgent = (_request, response) => {
    release = () => response.end("late");
  };
  const agent = one();
  const underWay = rig.ask({ path: "/v1/store", agent });
  await until(() => release !== undefined);
  rig.edge.drain();
  const ready = await rig.ask({ path: "/readyz", headers: { host: baseDomain }, agent: one() });
  expect(ready.status).toBe(503);
  expect(ready.body).toContain("the edge is stopping");
  expect(ready.headers.connection).toBe("close");
  const stopped = rig.edge.stop(30_000);
  release?.();
  const late = await underWay;
  expect([late.body, late.headers.connection]).toEqual(["late", "close"]);
  await stopped;
});

it("answers a client that asks again on its connection while it stops, and waits for no other", async () => {
  await using rig = await Rig.start();
  const agent = one();
  await rig.ask({ path: "/v1/store", agent });
  const stopped = rig.edge.stop(30_000, idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const again = await rig.ask({ path: "/v1/store", agent });
  expect([again.status, again.headers.connection]).toEqual([200, "close"]);
  const beganMs = performance.now();
  await stopped;
  expect(performance.now() - beganMs).toBeLessThan(idleMs);
});

it("closes the connection of a client that asks no more, and takes no new one meanwhile", async () => {
  await using rig = await Rig.start();
  const agent = one();
  await rig.ask({ path: "/v1/store", agent });
  const beganMs = performance.now();
  const stopped = rig.edge.stop(30_000, idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  await expect(rig.ask({ path: "/v1/store" })).rejects.toMatchObject({ code: "ECONNREFUSED" });
  await stopped;
  expect(performance.now() - beganMs).toBeGreaterThan(idleMs / 2);
  expect(performance.now() - beganMs).toBeLessThan(10 * idleMs);
  agent.destroy();
});

it("answers a client whose handshake is under way when it stops", async () => {
  await using rig = await Rig.start();
  const raw = net.connect(rig.port, "127.0.0.1");
  await once(raw, "connect");
  const stopped = rig.edge.stop(30_000, idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const socket = await rig.connectOver(raw);
  socket.write(`GET /v1/store HTTP/1.1\r\nhost: ${rig.host()}\r\n\r\n`);
  const answer = await readAll(socket);
  expect(answer).toMatch(/^HTTP\/1\.1 200/);
  expect(answer).toMatch(/\r\nconnection: close\r\n/i);
  await stopped;
});

test("a drain sends GOAWAY, open streams are answered, an idle connection is closed", async () => {
  await using rig = await Rig.start({ limits: { idleConnectionMs: 100 } });
  rig.onAgent = (_request, response) => void setTimeout(() => response.end("late"), 50);
  using idle = http2Client(rig);
  await once(idle, "connect");
  await once(idle, "close");
  using session = http2Client(rig);
  const late = askHttp2(rig, session, { ":path": "/v1/x" });
  await once(rig.agent, "request");
  const gone = once(session, "goaway");
  rig.edge.drain();
  expect((await late).body).toBe("late");
  await gone;
});

test("a stream that comes while the edge stops is answered, and ends the connection", async () => {
  await using rig = await Rig.start();
  using session = http2Client(rig);
  await askHttp2(rig, session, { ":path": "/v1/x" });
  const stopped = rig.edge.stop(30_000, idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const gone = once(session, "goaway");
  const closed = once(session, "close");
  expect((await askHttp2(rig, session, { ":path": "/v1/x" })).status).toBe(200);
  expect((await gone)[0]).toBe(http2.constants.NGHTTP2_NO_ERROR);
  await closed;
  await stopped;
});

test("stop lets open streams end, then ends their connection", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (_request, response) => void setTimeout(() => response.end("late"), 50);
  using session = http2Client(rig);
  const late = askHttp2(rig, session, { ":path": "/v1/x" });
  await once(rig.agent, "request");
  const closed = once(session, "close");
  await rig.edge.stop(5_000);
  expect((await late).body).toBe("late");
  await closed;
});
