/** Requests that a client sends before it has the answers to those before. */
import { once } from "node:events";
import { createServer, type RequestListener, type Server, type ServerResponse } from "node:http";
import net, { type AddressInfo, type Socket } from "node:net";
import { afterEach, expect, it } from "vitest";
import { boundHttp, http1Bounds } from "./bound-listener.ts";
import { listenerBounds } from "./bounds.ts";
import { ConnectionPlaces } from "./connection-places.ts";

let server: Server;
let socket: Socket;
let received = "";
afterEach(() => {
  socket.destroy();
  server.closeAllConnections();
  server.close();
});

async function connected(handler: RequestListener): Promise<void> {
  server = createServer(http1Bounds, handler);
  boundHttp(server, "e2b", new ConnectionPlaces({ connections: 8, connectionsPerAddress: 8 }));
  await once(server.listen(0, "127.0.0.1"), "listening");
  socket = net.connect((server.address() as AddressInfo).port, "127.0.0.1");
  received = "";
  socket.on("error", () => undefined).on("data", (piece) => (received += piece.toString()));
  await once(socket, "connect");
}

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`;

it("a request begins when the answer before it is taken, and answers come in order", async () => {
  const begun: string[] = [];
  const answers: ServerResponse[] = [];
  await connected((request, response) => {
    begun.push(request.url ?? "");
    answers.push(response);
    if (request.method === "POST") request.resume().once("end", () => response.end("body"));
  });
  socket.write(`${get("/1")}${get("/2")}POST /3 HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nfo`);
  await expect.poll(() => begun).toEqual(["/1"]);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(begun).toEqual(["/1"]);
  answers[0]?.end("one");
  await expect.poll(() => begun).toEqual(["/1", "/2"]);
  answers[1]?.end("two");
  await expect.poll(() => begun).toEqual(["/1", "/2", "/3"]);
  socket.write("ur");
  await expect.poll(() => received).toMatch(/one.*two.*body/s);
  socket.write(get("/4"));
  await expect.poll(() => begun.at(-1)).toBe("/4");
});

it("no request begins on a connection that ended with the answer before it", async () => {
  const begun: string[] = [];
  await connected((request, response) => {
    begun.push(request.url ?? "");
    response.once("close", () => request.socket.destroy());
    response.end("one");
  });
  const ended = once(socket, "close");
  socket.write(`${get("/1")}${get("/2")}`);
  await ended;
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(begun).toEqual(["/1"]);
});

it("no request begins while an answer is not read", async () => {
  let begun = 0;
  await connected((_request, response) => {
    begun += 1;
    response.end(Buffer.alloc(16 * 1_048_576));
  });
  socket.pause();
  socket.write(get("/").repeat(4));
  await expect.poll(() => begun).toBe(1);
  await new Promise((resolve) => setTimeout(resolve, 200));
  expect(begun).toBe(1);
  socket.resume();
  await expect.poll(() => begun, { timeout: 10_000 }).toBe(4);
});

it("the event loop turns between requests", async () => {
  const begunIn: number[] = [];
  let loopTurn = 0;
  let isOver = false;
  const count = (): void => void setImmediate(() => ((loopTurn += 1), isOver || count()));
  await connected((_request, response) => {
    begunIn.push(loopTurn);
    response.end();
  });
  count();
  socket.write(get("/").repeat(20));
  await expect.poll(() => begunIn.length).toBe(20);
  isOver = true;
  expect(new Set(begunIn).size).toBe(20);
});

it("more requests than may wait end the connection", async () => {
  let begun = 0;
  await connected(() => void (begun += 1));
  const closed = once(socket, "close");
  socket.write(get("/").repeat(listenerBounds.pipelinedRequests + 2));
  await closed;
  expect(begun).toBe(1);
});

it("requests after a last answer never begin", async () => {
  const begun: string[] = [];
  await connected((request, response) => {
    begun.push(request.url ?? "");
    response.setHeader("connection", "close").end("last");
  });
  const closed = once(socket, "close");
  socket.write(get("/1") + get("/2"));
  await closed;
  expect(begun).toEqual(["/1"]);
});
