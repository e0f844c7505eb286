// Credentials in the wrong hands: what the edge passes to an agent, replayed wherever a client can ask, and an owner's token shown to
// the agent itself. Each credential is first seen to be good where it belongs, so that a refusal means something.
import { dataPlaneRoutes, defaults } from "@cloche/protocol";
import { beforeAll, describe, expect, inject, test } from "vitest";
import { examplePath } from "../conformance/auth-refusals.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { gatewayMethods } from "../conformance/surface-map.ts";
import { sharedClient } from "../fixtures/client.ts";
import { channelOf, innerTokenOf, statusOfAgent } from "../fixtures/inner-channel.ts";

const { home, target } = inject("service");
const client = sharedClient();
const port = 8_000;
/** What a redeemed link sets at the edge. */
const portCookie = "__Host-cloche";
let sandbox: TestSandbox;
let neighbour: TestSandbox;
let inner: string;
let ofPort: string;
beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([client.create(), client.create()]);
  const agent = channelOf(home, sandbox.id);
  inner = innerTokenOf(agent, sandbox);
  ofPort = innerTokenOf(agent, sandbox, { port });
  expect(await statusOfAgent(agent, "GET", "/v1/store", inner)).toBe(200);
});

const ways = (token: string): Record<string, string>[] => [
  { authorization: `Bearer ${token}` },
  { cookie: `${portCookie}=${token}` },
];

describe("an inner token", () => {
  test("is refused by the edge on every route, those of the host too", async () => {
    for (const { method, path } of dataPlaneRoutes) {
      for (const token of [inner, ofPort]) {
        const headers = { authorization: `Bearer ${token}` };
        const body = method === "GET" || method === "HEAD" ? undefined : Buffer.from("{}");
        const request = { method, path: examplePath(path), headers, body };
        const { status } = await client.session.wire.dataPlane(sandbox.domain, request);
        expect(status, `${method} ${path}`).toBe(401);
      }
    }
  });

  test("opens no port at the edge, in whatever place it is shown", async () => {
    const serve = `cd /tmp && (setsid python3 -m http.server ${port} >/dev/null 2>&1 &); until curl -s -o /dev/null http://127.0.0.1:${port}/; do sleep 0.2; done`;
    await client.shell(sandbox, serve);
    const domain = `${port}-${sandbox.domain}`;
    const ask = async (headers: Record<string, string>): Promise<number> =>
      (await client.session.wire.dataPlane(domain, { method: "GET", path: "/", headers })).status;
    expect(await ask({ authorization: `Bearer ${sandbox.token}` })).toBe(200);
    for (const token of [inner, ofPort])
      for (const headers of ways(token)) expect([401, 403]).toContain(await ask(headers));
  });

  test("is no API key of the gateway, and finds no host or edge service behind it", async () => {
    const ask = async (path: string, token: string): Promise<number> => {
      const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
      const request = { method: "POST", path, headers, body: Buffer.from("{}") };
      return (await client.session.wire.gateway(request)).status;
    };
    expect(await ask("/cloche.public.v1.SandboxService/ListSandboxes", target.apiKey)).toBe(200);
    for (const { path } of gatewayMethods) expect(await ask(path, inner), path).toBe(401);
    const behind = [
      "/cloche.host.v1.HostService/ListMachines",
      "/cloche.edge.v1.RouteService/WatchRoutes",
      "/cloche.guest.v1.GuestService/GetActivity",
    ];
    for (const path of behind)
      for (const token of [inner, sandbox.token, target.apiKey])
        expect([401, 404], path).toContain(await ask(path, token));
  });

  test("controls no agent, is of no use to a neighbour, and a tunnel's opens nothing else", async () => {
    const agent = channelOf(home, sandbox.id);
    const control = "/cloche.guest.v1.GuestService/GetActivity";
    expect(await statusOfAgent(agent, "POST", control, inner)).toBe(401);
    expect(await statusOfAgent(agent, "GET", "/v1/store", ofPort)).toBe(401);
    expect(await statusOfAgent(channelOf(home, neighbour.id), "GET", "/v1/store", inner)).toBe(401);
    // By its handshake, at once: not by a deadline of ours.
    await expect(
      statusOfAgent({ ...agent, key: channelOf(home, neighbour.id).key }, "GET", "/v1/store", inner),
    ).rejects.toMatchObject({ code: expect.stringMatching(/^(ERR_SSL_|EPROTO)/) });
  });
});

describe("an owner's token", () => {
  test("is refused by the agent, on its channel as anywhere", async () => {
    const agent = channelOf(home, sandbox.id);
    for (const path of ["/v1/store", "/v1/services", "/cloche.guest.v1.GuestService/GetActivity"])
      expect(await statusOfAgent(agent, path.startsWith("/v1") ? "GET" : "POST", path, sandbox.token)).toBe(
        401,
      );
  });

  test("gets nothing from inside, sent straight to the agent's port, plainly or by TLS", async () => {
    const program = `import os, socket, ssl, sys
token, port = sys.argv[1], int(sys.argv[2])
lines = ["GET /v1/store HTTP/1.1", "host: x", "authorization: Bearer " + token, "connection: close", "", ""]
def ask(wrap):
  try:
    s = wrap(socket.create_connection(("127.0.0.1", port), 5)); s.settimeout(5)
    s.sendall("\\r\\n".join(lines).encode()); said = s.recv(4096)
  except (OSError, ssl.SSLError) as e: return "refused"
  return "answered" if b"HTTP" in said else "refused"
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
print(ask(lambda s: s), ask(context.wrap_socket))`;
    // The same program is answered by whoever does serve there.
    const cmd = (to: number): string[] => ["python3", "-c", program, sandbox.token, String(to)];
    expect((await client.exec(sandbox, cmd(port))).stdout).toBe("answered refused\n");
    for (const user of ["root", "nobody"])
      expect((await client.exec(sandbox, cmd(defaults.agentPort), { user })).stdout).toBe(
        "refused refused\n",
      );
  });
});
