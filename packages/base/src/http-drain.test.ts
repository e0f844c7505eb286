import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { expect, it } from "vitest";
import { HttpDrain, stopListening } from "./http-drain.ts";

const idleMs = 1_500;

/** A server that answers after `answerMs`, and a client with one kept connection. */
async function pair(answerMs = 0) {
  const server = http.createServer((_, response) => {
    setTimeout(() => response.end("ok"), answerMs);
  });
  const drain = new HttpDrain(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const { port } = server.address() as AddressInfo;
  const ask = async () => {
    const request = http.get({ host: "127.0.0.1", port, agent });
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    response.resume();
    await once(response, "end");
    return { isReused: request.reusedSocket, connection: response.headers.connection };
  };
  return { server, drain, agent, ask, [Symbol.dispose]: () => void server.close() };
}

it("answers a kept connection that asks again, and ends it with that", async () => {
  using it = await pair();
  await it.ask();
  it.drain.begin();
  const ended = stopListening(it.server);
  const quiet = it.drain.quiet(idleMs);
  expect(await it.ask()).toEqual({ isReused: true, connection: "close" });
  const beganMs = performance.now();
  await Promise.all([quiet, ended]);
  expect(performance.now() - beganMs).toBeLessThan(idleMs);
});

it("waits for one that is silent as long as it may ask again", async () => {
  using it = await pair();
  await it.ask();
  it.drain.begin();
  const beganMs = performance.now();
  await it.drain.quiet(idleMs);
  const tookMs = performance.now() - beganMs;
  expect(tookMs).toBeGreaterThan(idleMs * 0.75);
  await it.drain.quiet(idleMs);
  expect(performance.now() - beganMs).toBeLessThan(tookMs + idleMs / 2);
  it.agent.destroy();
});

it("outlives a request whose body is not read to its end", async () => {
  const answer = async (request: http.IncomingMessage, response: http.ServerResponse) => {
    for await (const _ of request) break;
    response.end("ok");
  };
  const server = http.createServer((request, response) => void answer(request, response));
  const drain = new HttpDrain(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const request = http.request({ host: "127.0.0.1", port, method: "POST" }).end("body");
  const [response] = (await once(request, "response")) as [http.IncomingMessage];
  response.resume();
  await once(response, "end");
  drain.begin();
  // Were its connection not known by now, this would be over at once, or the process.
  const beganMs = performance.now();
  await drain.quiet(idleMs / 5);
  expect(performance.now() - beganMs).toBeGreaterThan(idleMs / 10);
  server.closeAllConnections();
  server.close();
});

it("ends the connection of what is under way", async () => {
  using it = await pair(200);
  const underWay = it.ask();
  await once(it.server, "request");
  it.drain.begin();
  expect((await underWay).connection).toBe("close");
});
