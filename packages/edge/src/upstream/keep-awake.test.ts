import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { expect, test } from "vitest";
import { FakeDoze } from "../testing/fake-doze.ts";
import { sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { Rig, until } from "../testing/rig.ts";

test("one that dozes is roused before anything is sent to it", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.start({ keepAwake: doze.keepAwake });
  expect((await rig.ask()).status).toBe(200);
  doze.dozing.add(sandboxA);
  const awake = Promise.withResolvers<void>();
  doze.onRouse = () => awake.promise;
  const asked = Promise.all(["/v1/1", "/v1/2", "/v1/3"].map((path) => rig.ask({ path })));
  await until(() => doze.roused.length === 3);
  expect(rig.seen).toHaveLength(1);
  awake.resolve();
  expect((await asked).map(({ status }) => status)).toEqual([200, 200, 200]);
});

test("one is kept awake from before it is asked until it has answered", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.start({ keepAwake: doze.keepAwake });
  let answer: ServerResponse | undefined;
  rig.onAgent = (_request, response) => void (answer = response);
  const asked = rig.ask();
  await until(() => answer !== undefined);
  expect(doze.held).toBe(1);
  answer?.end("answered");
  expect((await asked).body).toBe("answered");
  await until(() => doze.held === 0);
});

test("one is kept awake no longer when its client, or its connection, is gone", async () => {
  const doze = new FakeDoze();
  const { keepAwake } = doze;
  await using rig = await Rig.start({ keepAwake, limits: { halfClosedGraceMs: 100 } });
  const heard: IncomingMessage[] = [];
  rig.onAgent = (request) => void heard.push(request);
  const request = rig.request();
  request.on("error", () => undefined);
  request.end();
  await until(() => heard.length === 1);
  request.destroy();
  await until(() => doze.held === 0);
  const asked = rig.ask();
  await until(() => heard.length === 2);
  expect(doze.held).toBe(1);
  heard[1]?.destroy();
  expect((await asked).status).toBe(503);
  expect(doze.held).toBe(0);
});

test("one is kept awake as long as a WebSocket is open", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.start({ keepAwake: doze.keepAwake });
  const socket = await rig.connect();
  socket.write(
    `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
  );
  await once(socket, "data");
  expect(doze.held).toBe(1);
  socket.destroy();
  await until(() => doze.held === 0);
});

test("one that is not asked is left alone, also by requests that are not for its agent", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.start({ keepAwake: doze.keepAwake });
  doze.dozing.add(sandboxA);
  expect((await rig.ask({ path: "/v1/checkpoint/list" })).body).toContain("host");
  expect([doze.roused, doze.held]).toEqual([[], 0]);
});

test("who has no token of the sandbox rouses nothing", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.startChannel({ keepAwake: doze.keepAwake });
  doze.dozing.add(sandboxA);
  for (const headers of [{}, { authorization: "Bearer rubbish" }, await rig.bearer(sandboxB)])
    expect((await rig.ask({ path: "/v1/store", headers })).status).toBe(401);
  expect([doze.roused, doze.held]).toEqual([[], 0]);
  expect((await rig.ask({ path: "/v1/store", headers: await rig.bearer() })).status).toBe(200);
  expect(doze.roused).toEqual([sandboxA]);
});

test("one that cannot be roused is 503, and the next request tries again", async () => {
  const doze = new FakeDoze();
  await using rig = await Rig.start({ keepAwake: doze.keepAwake });
  doze.dozing.add(sandboxA);
  doze.onRouse = () => Promise.reject(new Error("no"));
  const refused = await rig.ask();
  expect([refused.status, refused.headers["retry-after"], doze.held]).toEqual([503, "1", 0]);
  doze.onRouse = async () => undefined;
  expect((await rig.ask()).status).toBe(200);
});
