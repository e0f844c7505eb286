/**
 * Answers that are sent before the request was read: by an agent or a port's server, whose connection is then not
 * reused, and by the edge itself. Clients that send their whole body before they read must get these answers.
 */
import { once } from "node:events";
import net, { type AddressInfo, type Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { Rig, readAll, until } from "./testing/rig.ts";

/** An agent that answers each request when its head has arrived, reads no body, and keeps its connections open. */
async function hastyAgent(statusOf: (head: string) => number) {
  const heads: string[] = [];
  const sockets = new Set<Socket>();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    let text = "";
    socket.on("data", (chunk) => {
      text += chunk.toString("latin1");
      const end = text.indexOf("\r\n\r\n");
      if (end === -1) return;
      const head = text.slice(0, end);
      heads.push(head);
      socket.write(`HTTP/1.1 ${statusOf(head)} X\r\ncontent-length: 2\r\n\r\n{}`);
      text = "";
      if (!head.startsWith("POST")) return;
      // The body is not read, as by a server whose handler does not read it.
      socket.pause();
      socket.removeAllListeners("data");
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    heads,
    [Symbol.dispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

test.each([
  ["a small body that was sent whole, refused", 1_000, 400],
  ["a large body, refused", 4 * 1024 * 1024, 413],
  ["a large body, taken unread", 4 * 1024 * 1024, 200],
])("after %s, the next request is answered on another connection", async (_what, bytes, status) => {
  await using rig = await Rig.start();
  using agent = await hastyAgent((head) => (head.startsWith("POST") ? status : 200));
  rig.gateway.set({ sandboxId: sandboxA, agentPort: agent.port, epoch: 2n });
  await until(async () => (await rig.ask({ path: "/first" })).status === 200 && agent.heads.length > 0);
  for (let round = 0; round < 5; round += 1) {
    const body = Buffer.alloc(bytes, "x");
    const headers = { "content-length": bytes };
    const early = await rig.ask({ method: "POST", path: "/v1/files/archive?path=/x", headers, body });
    expect(early.status).toBe(status);
    expect((await rig.ask({ path: "/next" })).status).toBe(200);
  }
});

const mebibyte = Buffer.alloc(1024 * 1024, "x");

/** The answer for a client that sends its whole body before it reads a byte, as Python's clients do. */
async function sendAllThenRead(socket: TLSSocket, head: string, mebibytes: number): Promise<string> {
  socket.pause();
  socket.write(head);
  for (let sent = 0; sent < mebibytes; sent += 1) {
    if (!socket.write(mebibyte)) await new Promise((resolve) => socket.once("drain", resolve));
  }
  return readAll(socket.resume());
}

test.each([
  ["an agent's", 413, "POST /v1/files?path=/x HTTP/1.1", ""],
  ["an agent's, to a client that closes", 413, "POST /v1/files?path=/x HTTP/1.1", "Connection: close\r\n"],
  ["an agent's, to a client of HTTP/1.0", 413, "POST /v1/files?path=/x HTTP/1.0", ""],
  ["the host's", 413, "POST /v1/checkpoint HTTP/1.1", "Connection: close\r\n"],
  ["the edge's own, of a route", 405, "DELETE /v1/files/link HTTP/1.1", ""],
  ["the edge's own, of a form", 421, "POST /v1/x HTTP/1.1", "Host: 127.0.0.1\r\n"],
  ["the edge's own, of too many headers", 431, "POST /v1/x HTTP/1.1", "a: b\r\n".repeat(300)],
  ["the edge's own, of a rate", 429, "POST /v1/x HTTP/1.1", ""],
])(
  "%s answer is heard by a client that sends 20 and 50 MiB before it reads",
  async (_whose, status, line, more) => {
    await using rig = await Rig.start({
      ...(status === 429 && { limits: { requestsPerSecond: 0.01 } }),
      hostDataPlane: (_request, response) => {
        response.writeHead(413, { "content-type": "application/json" });
        response.end('{"answered":"by the host"}');
      },
    });
    rig.onAgent = (_request, response) => {
      response.writeHead(413, { "content-type": "application/json" });
      response.end('{"answered":"by the agent"}');
    };
    const host = more.startsWith("Host") ? "" : `Host: ${rig.host()}\r\n`;
    for (const mebibytes of [20, 50]) {
      const length = `Content-Length: ${mebibytes * mebibyte.length}\r\n`;
      const text = await sendAllThenRead(
        await rig.connect(),
        `${line}\r\n${host}${more}${length}\r\n`,
        mebibytes,
      );
      expect(text).toMatch(new RegExp(`^HTTP/1\\.1 ${status} [^]*}(?:\\r\\n0\\r\\n\\r\\n)?$`));
    }
  },
);

test("an agent that answers and ends its connection with the body unread is heard", async () => {
  await using rig = await Rig.startChannel();
  const { authorization } = await rig.bearer();
  rig.onAgent = (request, response) => {
    response.writeHead(413, { "content-length": "3", connection: "close" });
    // Node then resets the connection, because the body was not read.
    response.end("too", () => request.socket.destroySoon());
  };
  for (let round = 0; round < 20; round += 1) {
    const head = `POST /v1/files?path=/x HTTP/1.1\r\nHost: ${rig.host()}\r\nAuthorization: ${authorization}\r\n`;
    const length = `Content-Length: ${4 * mebibyte.length}\r\n\r\n`;
    const text = await sendAllThenRead(await rig.connect(), head + length, 4);
    expect(text).toMatch(/^HTTP\/1\.1 413 [^]*too$/);
  }
});
