import { once } from "node:events";
import http from "node:http";
import net, { type AddressInfo } from "node:net";
import { Worker } from "node:worker_threads";
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
  return { server, port, drain, agent, ask, [Symbol.dispose]: () => void server.close() };
}

const clientsMany = 20;
/** Posts the first line, or the error, that each connection is answered. */
const clientsOnAThread = `
  const { parentPort, workerData: { port, established } } = require("node:worker_threads");
  const ask = () => new Promise((resolve) => {
    const socket = require("node:net").connect(port, "127.0.0.1", () => {
      Atomics.add(established, 0, 1);
      Atomics.notify(established, 0);
      socket.write("GET / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n");
    });
    socket.once("data", (chunk) => resolve(String(chunk).split("\\r\\n")[0]));
    socket.once("error", ({ code }) => resolve(code));
  });
  Promise.all(Array.from({ length: ${clientsMany} }, ask)).then((all) => parentPort.postMessage(all));
`;

/** Asks on a connection of its own; the answer, or the error. */
async function askOn(socket: net.Socket): Promise<string> {
  const chunks: Buffer[] = [];
  socket.on("data", (chunk: Buffer) => chunks.push(chunk));
  const ended = once(socket, "end");
  socket.write("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  await ended.catch((error: unknown) => chunks.push(Buffer.from(String(error))));
  return Buffer.concat(chunks).toString();
}

it("answers a kept connection that asks again, and ends it with that", async () => {
  using it = await pair();
  await it.ask();
  it.drain.begin();
  const ended = stopListening(it.server);
  const quiet = it.drain.quiet(idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
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
  void stopListening(it.server);
  await it.drain.quiet(idleMs);
  const tookMs = performance.now() - beganMs;
  expect(tookMs).toBeGreaterThan(idleMs * 0.75);
  await it.drain.quiet(idleMs);
  expect(performance.now() - beganMs).toBeLessThan(tookMs + idleMs / 2);
  it.agent.destroy();
});

it("answers a connection that has asked nothing yet", async () => {
  using it = await pair();
  const socket = net.connect(it.port, "127.0.0.1");
  await once(it.server, "connection");
  it.drain.begin();
  const ended = stopListening(it.server);
  let isQuiet = false;
  const quiet = it.drain.quiet(10 * idleMs).then(() => (isQuiet = true));
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(isQuiet).toBe(false);
  expect(await askOn(socket)).toMatch(/^HTTP\/1\.1 200/);
  await Promise.all([quiet, ended]);
});

it("answers connections that the kernel has established and the server has not accepted", async () => {
  using it = await pair();
  const established = new Int32Array(new SharedArrayBuffer(4));
  const clients = new Worker(clientsOnAThread, { eval: true, workerData: { port: it.port, established } });
  await once(clients, "online");
  // Holds up this thread, so that nothing is accepted before the stop.
  for (let seen = 0; seen < clientsMany; seen = Atomics.load(established, 0))
    Atomics.wait(established, 0, seen);
  const ended = stopListening(it.server);
  const [outcomes] = (await once(clients, "message")) as [string[]];
  expect(outcomes).toEqual(Array(clientsMany).fill("HTTP/1.1 200 OK"));
  await ended;
  await expect(once(net.connect(it.port, "127.0.0.1"), "connect")).rejects.toMatchObject({
    code: "ECONNREFUSED",
  });
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
  void stopListening(server);
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
