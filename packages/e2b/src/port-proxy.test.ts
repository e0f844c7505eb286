/** One caller's request never becomes another's, whatever its method and framing. */
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type Server } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { afterEach, beforeEach, expect, it } from "vitest";
import { answerError } from "./http.ts";
import { passOn } from "./port-proxy.ts";

interface Seen {
  method: string | undefined;
  url: string | undefined;
  authorization: string | undefined;
  body: string;
}

let upstream: Server;
let proxy: Server;
let seen: Seen[];
let connections: number;
const port = (server: Server): number => (server.address() as AddressInfo).port;
const listening = (server: Server) => once(server.listen(0, "127.0.0.1"), "listening");

async function bodyOf(message: IncomingMessage): Promise<string> {
  let text = "";
  for await (const chunk of message) text += String(chunk);
  return text;
}

beforeEach(async () => {
  [seen, connections] = [[], 0];
  upstream = createServer((incoming, response) => {
    const { method, url, headers } = incoming;
    void bodyOf(incoming)
      .then((body) => {
        seen.push({ method, url, authorization: headers.authorization, body });
        response.end(`answer to ${url}`);
      })
      .catch(() => undefined);
  });
  upstream.on("connection", () => (connections += 1));
  await listening(upstream);
  const edge = { url: new URL(`http://127.0.0.1:${port(upstream)}`), ca: undefined };
  proxy = createServer((incoming, response) => {
    const token = incoming.headers["x-access-token"] === "mine" ? "the-owner's" : undefined;
    try {
      void passOn(edge, { host: "8000-sbx.test", token }, incoming, response);
    } catch (error) {
      answerError(response, error);
    }
  });
  await listening(proxy);
});
afterEach(() => {
  for (const server of [proxy, upstream]) {
    server.closeAllConnections();
    server.close();
  }
});

/** Sends raw bytes, half-closes nothing, and answers the first line that comes back. */
async function raw(text: string): Promise<string> {
  const socket = connect(port(proxy), "127.0.0.1");
  socket.write(text);
  const [first] = (await once(socket, "data")) as [Buffer];
  socket.destroy();
  return first.toString().split("\r\n")[0] ?? "";
}

async function owner(path: string): Promise<string> {
  const call = request({ port: port(proxy), path, headers: { "x-access-token": "mine" }, agent: false });
  call.end();
  const [answer] = (await once(call, "response")) as [IncomingMessage];
  return bodyOf(answer);
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
    expect(await owner("/mine")).toBe("answer to /mine");
    expect(seen).toEqual([
      { method, url: "/first", authorization: undefined, body: smuggled },
      { method: "GET", url: "/mine", authorization: "Bearer the-owner's", body: "" },
    ]);
    expect(connections).toBe(2);
  });

it("a body cut off in the middle ends its connection, and nothing of it is answered", async () => {
  const socket = connect(port(proxy), "127.0.0.1");
  socket.write(`GET /first HTTP/1.1\r\nhost: x\r\ncontent-length: 700\r\n\r\n${smuggled}`);
  await once(upstream, "connection");
  socket.destroy();
  expect(await owner("/mine")).toBe("answer to /mine");
  expect(seen).toHaveLength(1);
});

it("a transfer encoding that cannot be passed on is refused", async () => {
  expect(
    await raw("POST /first HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
  ).toContain("501");
  expect(seen).toEqual([]);
});
