// An agent, or a server on a port, that answers before it has read the request: its connection carries no other.
import { once } from "node:events";
import net, { type AddressInfo, type Socket } from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { Rig, until } from "./testing/rig.ts";

/** An agent that answers each request once its head is there, reads no body, and keeps its connections. */
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
      // What follows is not looked at, as by a server that waits for its handler to read.
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
