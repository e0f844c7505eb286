/**
 * A server in a sandbox reads requests as it likes. What one caller sends to it never becomes another's request.
 */
import { once } from "node:events";
import http from "node:http";
import net, { type AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { http2Client, replyOf } from "./testing/http2-client.ts";
import { baseDomain, Rig } from "./testing/rig.ts";

/** Knows Content-Length alone, and of POST alone: whatever else follows a head is its next request. */
const simple = net.createServer((socket) => {
  let text = "";
  socket.on("error", () => undefined);
  socket.on("data", (bytes) => {
    text += bytes.toString("latin1");
    for (;;) {
      const end = text.indexOf("\r\n\r\n");
      if (end === -1) return;
      const head = text.slice(0, end);
      const length = head.startsWith("POST") ? Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0) : 0;
      if (text.length < end + 4 + length) return;
      text = text.slice(end + 4 + length);
      const path = head.split(" ")[1] ?? "";
      heads.push(head);
      const answer = `answer to ${path}`;
      const late = path.includes("smuggled") ? 200 : 0;
      setTimeout(
        () => socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${answer.length}\r\n\r\n${answer}`),
        late,
      );
    }
  });
});
let rig: Rig;
let port: number;
let heads: string[];
let connections: number;
simple.on("connection", () => (connections += 1));
beforeEach(async () => {
  [heads, connections] = [[], 0];
  rig = await Rig.start();
  simple.listen(0, "127.0.0.1");
  await once(simple, "listening");
  port = (simple.address() as AddressInfo).port;
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [port] });
});
afterEach(async () => {
  await rig[Symbol.asyncDispose]();
  simple.close();
});

const host = (): string => `${port}-${sandboxA}.${baseDomain}`;
const ask = (
  path: string,
  agent: http.Agent | false = false,
  more: http.RequestOptions & { body?: string } = {},
) => rig.askPlain(`/sandboxes/${sandboxA}/ports/${port}${path}`, { agent, ...more });

test.each([
  ["GET", "transfer-encoding"],
  ["DELETE", "content-length"],
  ["POST", "transfer-encoding"],
])("a %s whose body the server takes for a request (%s) spoils nobody else's", async (method, framing) => {
  const body = "POST /smuggled HTTP/1.1\r\nContent-Length: 700\r\n\r\n";
  const headers = { [framing]: framing === "content-length" ? body.length : "chunked" };
  using keeping = keptAgent();
  const stranger = await ask("/stranger", keeping.agent, { method, headers, body });
  expect(stranger.body).toBe("answer to /stranger");
  const others = [await ask("/mine"), await ask("/of-the-same-connection", keeping.agent)];
  expect(others.map((answer) => answer.body)).toEqual([
    "answer to /mine",
    "answer to /of-the-same-connection",
  ]);
  expect(heads.filter((head) => head.includes("smuggled") && head.includes("/mine"))).toEqual([]);
});

test("requests of one client's connection share one to the server, and those of two never do", async () => {
  using one = keptAgent();
  using two = keptAgent();
  for (const path of ["/1", "/2"]) await ask(path, one.agent);
  expect(connections).toBe(1);
  for (const path of ["/3", "/4"]) await ask(path, two.agent);
  for (const path of ["/5"]) await ask(path, one.agent);
  expect(connections).toBe(2);
  using session = http2Client(rig, `${port}-${sandboxA}`);
  for (const path of ["/6", "/7"])
    expect((await replyOf(session.request({ ":path": path, ":authority": host() }))).status).toBe(200);
  expect(connections).toBe(3);
});

function keptAgent(): { agent: http.Agent } & Disposable {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  return { agent, [Symbol.dispose]: () => agent.destroy() };
}
