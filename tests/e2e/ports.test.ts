// Servers inside a sandbox, reached through the edge: https://<port>-<id>.<base domain>.
import https from "node:https";
import { defaults } from "@cloche/protocol";
import { beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;

// Says what it was asked; upgrades any WebSocket and echoes its first frame's letters.
const server = `
import base64, hashlib, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("upgrade") == "websocket":
            key = (self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()
            self.send_response(101)
            self.send_header("upgrade", "websocket")
            self.send_header("connection", "upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
            self.end_headers()
            head = self.rfile.read(2); length = head[1] & 127; mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes([0x81, len(text)]) + text); self.close_connection = True
            return
        body = f"{self.path} cookie={self.headers.get('cookie')} auth={self.headers.get('authorization')}".encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`;

beforeAll(async () => {
  sandbox = await client.create({ public_ports: [9000] });
  await client.call(sandbox, "POST", "/v1/files?path=/root/server.py", { body: Buffer.from(server) });
  const definition = { cmd: "python3", args: ["/root/server.py"], health_port: 8000 };
  await client.call(sandbox, "PUT", "/v1/services/web", { json: definition });
  const started = await client.call(sandbox, "POST", "/v1/services/web/start");
  expect(JSON.parse(started.body.toString())).toMatchObject({ status: "running" });
  await client.shell(
    sandbox,
    `cd /tmp && echo open > index.html && (python3 -m http.server 9000 > /dev/null 2>&1 &)
     until curl -s -o /dev/null http://127.0.0.1:9000/; do sleep 0.1; done`,
  );
});

const at = (port: number): string => `${port}-${sandbox.domain}`;
const get = (port: number, path: string, headers: Record<string, string> = {}) =>
  client.session.wire.dataPlane(at(port), { method: "GET", path, headers });
const bearer = (): Record<string, string> => ({ authorization: `Bearer ${sandbox.token}` });

describe("a port of a sandbox", () => {
  test("answers who shows the sandbox's token, which the server inside never sees", async () => {
    const answer = await get(8000, "/a?b=c", bearer());
    expect(answer.status, answer.body.toString()).toBe(200);
    expect(answer.body.toString()).toContain("/a?b=c");
    expect(answer.body.toString()).not.toContain(sandbox.token);
  });

  test("refuses who shows none, or another sandbox's", async () => {
    const other = await client.create();
    expect((await get(8000, "/")).status).toBe(401);
    expect((await get(8000, "/", { authorization: `Bearer ${other.token}` })).status).toBe(401);
    expect((await get(8000, "/", { authorization: `Bearer ${target.apiKey}` })).status).toBe(401);
  });

  test("is open to all when its owner marked it public", async () => {
    const answer = await get(9000, "/");
    expect(answer.status).toBe(200);
    expect(answer.body.toString()).toBe("open\n");
  });

  test("is open to all when every port is public, but never the agent's", async () => {
    const update = (ports: unknown[]) =>
      client.gateway("UpdateSandbox", { id: sandbox.id, public_ports: { ports } });
    await update(["*"]);
    expect((await get(8000, "/")).status).toBe(200);
    expect((await get(defaults.agentPort, "/healthz")).status).toBe(403);
    await update([9000]);
    expect((await get(8000, "/")).status).toBe(401);
  });

  test("says so when nobody listens there", async () => {
    expect([502, 503, 404]).toContain((await get(8001, "/", bearer())).status);
  });

  test("opens in a browser by a link that works once", async () => {
    const { url } = await client.gateway<{ url: string }>("IssuePortLink", {
      sandbox_id: sandbox.id,
      port: 8000,
      path: "/inside?x=1",
    });
    const link = new URL(url);
    const path = `${link.pathname}${link.search}`;
    const first = await get(8000, path);
    expect([302, 303, 307]).toContain(first.status);
    const cookie = String(first.headers["set-cookie"]);
    expect(cookie).toMatch(/HttpOnly/i);
    expect(cookie).toMatch(/Secure/i);
    const location = new URL(String(first.headers.location), url);
    expect(`${location.pathname}${location.search}`).toBe("/inside?x=1");
    const inside = await get(8000, "/inside?x=1", { cookie: cookie.split(";")[0] ?? "" });
    expect(inside.status).toBe(200);
    expect(inside.body.toString()).toContain("/inside?x=1");
    expect((await get(8000, path)).status).toBe(401);
  });

  test("lets one of fifty in who open a link at once", async () => {
    const { url } = await client.gateway<{ url: string }>("IssuePortLink", {
      sandbox_id: sandbox.id,
      port: 8000,
    });
    const { pathname, search } = new URL(url);
    const answers = await Promise.all(Array.from({ length: 50 }, () => get(8000, `${pathname}${search}`)));
    const letIn = answers.filter(({ status }) => status !== 401);
    expect(letIn.map(({ status }) => status)).toEqual([303]);
    expect(answers.filter(({ headers }) => headers["set-cookie"] !== undefined)).toEqual(letIn);
  });

  test("a link's cookie opens that port and nothing else", async () => {
    const link = async (): Promise<string> => {
      const { url } = await client.gateway<{ url: string }>("IssuePortLink", {
        sandbox_id: sandbox.id,
        port: 8000,
      });
      const { pathname, search } = new URL(url);
      return String((await get(8000, `${pathname}${search}`)).headers["set-cookie"]).split(";")[0] ?? "";
    };
    const cookie = await link();
    const token = cookie.slice(cookie.indexOf("=") + 1);
    expect((await get(8000, "/", { cookie })).status).toBe(200);

    const other = await client.create();
    const json = { cmd: ["cat", "/etc/shadow"] };
    const calls: [TestSandbox, string, string, object | undefined][] = [
      [sandbox, "POST", "/v1/exec", json],
      [sandbox, "GET", "/v1/files?path=/etc/shadow", undefined],
      [sandbox, "PUT", "/v1/store/a", { value: 1 }],
      [sandbox, "GET", "/v1/services", undefined],
      [sandbox, "POST", "/v1/checkpoint", {}],
      [sandbox, "GET", "/v1/checkpoint/list", undefined],
      [sandbox, "POST", "/v1/restore", { checkpoint_id: "ckpt-aaaaaaaaaaaaaaaaaaaa" }],
      [other, "POST", "/v1/exec", json],
    ];
    for (const [whose, method, path, body] of calls) {
      const headers = { authorization: `Bearer ${token}`, cookie };
      const answer = await client.call(whose, method, path, { json: body, headers });
      expect([path, answer.status]).toEqual([path, 401]);
      const byCookie = await client.session.wire.dataPlane(whose.domain, {
        method,
        path,
        headers: { cookie },
        body: body && Buffer.from(JSON.stringify(body)),
      });
      expect([path, byCookie.status]).toEqual([path, 401]);
    }
    expect((await get(8001, "/", { cookie })).status).toBe(401);
    expect((await get(defaults.agentPort, "/healthz", { cookie })).status).toBe(403);
    expect((await get(defaults.agentPort, "/healthz", bearer())).status).toBe(403);
    const elsewhere = await client.session.wire.dataPlane(`8000-${other.domain}`, {
      method: "GET",
      path: "/",
      headers: { cookie },
    });
    expect(elsewhere.status).toBe(401);
    const asKey = await client.session.wire.gateway({
      method: "POST",
      path: "/cloche.public.v1.SandboxService/IssueDataPlaneToken",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: Buffer.from(JSON.stringify({ sandbox_id: sandbox.id })),
    });
    expect(asKey.status).toBe(401);
  });

  test("carries a WebSocket both ways", async () => {
    const echoed = await new Promise<string>((resolve, reject) => {
      const request = https.request({
        host: target.edgeHost,
        port: target.edgePort,
        servername: at(8000).replace(/:\d+$/, ""),
        ca: target.ca,
        path: "/socket",
        headers: {
          host: at(8000),
          ...bearer(),
          connection: "Upgrade",
          upgrade: "websocket",
          "sec-websocket-version": "13",
          "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
      });
      request.on("error", reject);
      request.on("response", (response) => reject(new Error(`answered ${response.statusCode}`)));
      request.on("upgrade", (_, socket, head) => {
        const chunks: Buffer[] = [head];
        socket.on("data", (chunk: Buffer) => chunks.push(chunk));
        socket.on("close", () => resolve(Buffer.concat(chunks).toString("latin1")));
        const mask = Buffer.from([1, 2, 3, 4]);
        const text = Buffer.from("hello").map((byte, index) => byte ^ (mask[index % 4] ?? 0));
        socket.write(Buffer.concat([Buffer.from([0x81, 0x80 | 5]), mask, text]));
      });
      request.end();
    });
    expect(echoed).toContain("hello");
  });
});
