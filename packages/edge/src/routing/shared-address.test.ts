import { once } from "node:events";
import net from "node:net";
import { silentLog, systemClock } from "@cloche/base";
import { expect, test } from "vitest";
import { createEdge } from "../edge.ts";
import { sharedHostname } from "./shared-address.ts";
import { FakeGateway, sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { baseDomain, readAll, Rig } from "../testing/rig.ts";
import { selfSigned } from "../testing/certificate.ts";

const at = (path: string, sandboxId = sandboxA): string => `/sandboxes/${sandboxId}${path}`;

test("a path names the sandbox, with and without TLS, and the rest of it arrives as it was sent", async () => {
  await using rig = await Rig.start();
  const asked = "/v1/files?path=/a/../b//c%2Fd&x=/sandboxes/y";
  for (const host of ["127.0.0.1", "localhost", baseDomain, "[::1]", "192.0.2.7"]) {
    const headers = { host: `${host}:1`, authorization: "Bearer t" };
    const plain = await rig.askPlain(at(asked), { method: "POST", headers, body: "hello" });
    expect([host, plain.status]).toEqual([host, 200]);
    expect(rig.seen.at(-1)).toMatchObject({ method: "POST", url: asked, body: "hello" });
    expect(rig.seen.at(-1)?.headers).toMatchObject({ authorization: "Bearer t", host: `${host}:1` });
    expect((await rig.ask({ path: at(asked), headers, servername: "" })).status).toBe(200);
    expect(rig.seen.at(-1)?.url).toBe(asked);
  }
  for (const [path, arrives] of [
    [at(""), "/"],
    [at("?a=b"), "/?a=b"],
    [at("/"), "/"],
    [at("/v1/../v1/x//"), "/v1/../v1/x//"],
    [at("/ports"), "/ports"],
  ] as const) {
    await rig.askPlain(path);
    expect(rig.seen.at(-1)?.url).toBe(arrives);
  }
});

test("a header names the sandbox and leaves the path as it is", async () => {
  await using rig = await Rig.start();
  for (const path of ["/v1/x?y", "/healthz", "/"]) {
    expect((await rig.askPlain(path, { headers: { "x-sandbox-id": sandboxA } })).status).toBe(200);
    expect(rig.seen.at(-1)?.url).toBe(path);
  }
  const own = await rig.askPlain(at("/v1/x"), { headers: { "x-sandbox-id": sandboxA } });
  expect([own.status, rig.seen.at(-1)?.url]).toEqual([200, "/v1/x"]);
  // On a sandbox's own domain the header is ignored.
  expect((await rig.ask({ headers: { "x-sandbox-id": sandboxB } })).status).toBe(200);
  expect(rig.seen).toHaveLength(5);
});

test("what names no sandbox, or two, is refused in words that name it", async () => {
  await using rig = await Rig.start();
  const refused = async (path: string, headers: Record<string, string>, status: number, words: RegExp) => {
    const answer = await rig.askPlain(path, { headers });
    expect([path, answer.status]).toEqual([path, status]);
    expect(answer.body).toMatch(words);
  };
  await refused("/v1/x", {}, 404, /x-sandbox-id/);
  await refused("/sandboxes", {}, 404, /x-sandbox-id/);
  await refused("//sandboxes/x", {}, 404, /x-sandbox-id/);
  await refused("/sandboxes/", {}, 404, /no sandbox/);
  await refused("/sandboxes/sbx-short/v1/x", {}, 404, /sbx-short/);
  await refused(at("/v1/x", sandboxA.toUpperCase()), {}, 404, /no sandbox/);
  await refused(at("/v1/x", sandboxB), {}, 404, /there is no sandbox sbx-b/);
  for (const port of ["", "0", "08", "70000", "x", "80%30"])
    await refused(at(`/ports/${port}/`), {}, 404, /no port/);
  await refused("/v1/x", { "x-sandbox-id": "other" }, 400, /x-sandbox-id is \\?"other/);
  await refused("/v1/x", { "x-sandbox-port": "80" }, 404, /x-sandbox-id/);
  await refused("/", { "x-sandbox-id": sandboxA, "x-sandbox-port": "0" }, 400, /x-sandbox-port is/);
  await refused(at("/v1/x"), { "x-sandbox-id": sandboxB }, 400, /x-sandbox-id is sbx-b.* path names sbx-a/);
  await refused(at("/ports/80/"), { "x-sandbox-port": "81" }, 400, /x-sandbox-port is 81/);
  const twice = `GET /v1/x HTTP/1.1\r\nHost: localhost\r\nx-sandbox-id: ${sandboxA}\r\nx-sandbox-id: ${sandboxB}\r\n\r\n`;
  const socket = net.connect(rig.plainPort, "127.0.0.1");
  socket.end(twice);
  expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 400 /);
  expect(rig.seen).toHaveLength(0);
});

test("another name for this machine is refused, whatever the path or header says", async () => {
  await using rig = await Rig.start();
  for (const host of ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "0x7f000001", "[evil]"]) {
    for (const path of [at("/v1/x"), "/healthz"]) {
      const headers = { host, "x-sandbox-id": sandboxA };
      expect([host, (await rig.askPlain(path, { headers })).status]).toEqual([host, 404]);
    }
  }
  expect(rig.seen).toHaveLength(0);
  for (const host of ["localhost:7081", "LOCALHOST.", "127.0.0.1", "[::1]:80", "10.1.2.3", `${baseDomain}:1`])
    expect([host, sharedHostname(host, baseDomain)]).not.toEqual([host, undefined]);
});

test("paths between edge and agent are closed here too, and the host answers its own", async () => {
  await using rig = await Rig.start();
  for (const path of [
    "/cloche/port/22",
    "//cloche/exec-abort",
    "/Cloche/x",
    "/cloche.guest.v1.GuestService/Assign",
  ])
    for (const headers of [{}, { "x-sandbox-id": sandboxA }])
      expect((await rig.askPlain(at(path), { method: "POST", headers })).status).toBe(404);
  expect(rig.seen).toHaveLength(0);
  await rig.askPlain(at("/v1/checkpoint/list?x=1"));
  expect(rig.hostSeen).toEqual([`GET /v1/checkpoint/list?x=1 ${sandboxA}`]);
});

test("a link to a file is good at the address where it was made, without any header", async () => {
  await using rig = await Rig.startChannel();
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), linkKey: Buffer.alloc(32, 1) });
  const body = JSON.stringify({ path: "/root/a", operation: "read" });
  const named = { "x-sandbox-id": sandboxA };
  for (const [path, more] of [
    [at("/v1/files/link"), {}],
    ["/v1/files/link", named],
  ] as const) {
    const headers = { ...(await rig.bearer()), ...more };
    const made = await rig.askPlain(path, { method: "POST", headers, body });
    const { url } = JSON.parse(made.body) as { url: string };
    const origin = `http://127.0.0.1:${rig.plainPort}`;
    expect(url).toMatch(new RegExp(`^${origin}/sandboxes/${sandboxA}/v1/files/link\\?token=`));
    expect((await rig.askPlain(url.slice(origin.length))).status).toBe(200);
    expect(rig.seen.at(-1)?.url).toBe("/v1/files?path=/root/a");
    const elsewhere = url.slice(origin.length).replace(sandboxA, sandboxB);
    expect((await rig.askPlain(elsewhere)).status).toBe(404);
  }
  const local = { ...(await rig.bearer()), host: "localhost" };
  const path = at("/v1/files/link");
  const secure = await rig.ask({ method: "POST", path, servername: "localhost", headers: local, body });
  expect(secure.body).toContain(`"https://localhost/sandboxes/${sandboxA}/v1/files/link?token=`);
});

test("wrong tokens are refused as at the sandbox's own domain", async () => {
  await using rig = await Rig.startChannel();
  const ask = async (headers: Record<string, string>, sandboxId = sandboxA): Promise<unknown[]> => {
    const own = await rig.ask({ headers, label: sandboxId, path: "/v1/exec" });
    const shared = await rig.askPlain(at("/v1/exec", sandboxId), { headers });
    const named = await rig.askPlain("/v1/exec", { headers: { ...headers, "x-sandbox-id": sandboxId } });
    expect([shared.status, shared.body]).toEqual([own.status, own.body]);
    expect([named.status, named.body]).toEqual([own.status, own.body]);
    expect(shared.headers["www-authenticate"]).toBe(own.headers["www-authenticate"]);
    return [own.status];
  };
  expect(await ask({})).toEqual([401]);
  expect(await ask(await rig.bearer(sandboxB))).toEqual([401]);
  expect(await ask({ authorization: "Bearer rubbish" })).toEqual([401]);
  const expired = await rig.gateway.token(sandboxA, { exp: 1 });
  expect(await ask({ authorization: `Bearer ${expired}` })).toEqual([401]);
  expect(rig.seen).toHaveLength(0);
  const good = await rig.askPlain(at("/v1/exec"), { headers: await rig.bearer() });
  expect(good.status).toBe(200);
});

test("browsers of any origin may call: a preflight names no sandbox, and errors can be read", async () => {
  await using rig = await Rig.start();
  const origin = "https://app.example";
  const preflight = { origin, "access-control-request-method": "POST" };
  const asked = (wanted: string, path = "/v1/exec") =>
    rig.askPlain(path, {
      method: "OPTIONS",
      headers: { ...preflight, "access-control-request-headers": wanted },
    });
  for (const path of ["/v1/exec", at("/v1/exec")]) {
    const answer = await asked("authorization,x-sandbox-id", path);
    expect(answer.status).toBe(204);
    expect(answer.headers).toMatchObject({ "access-control-allow-origin": "*" });
  }
  const forPort = await asked("authorization,X-Sandbox-Port");
  expect(forPort.status).toBe(404);
  expect(forPort.headers["access-control-allow-methods"]).toBeUndefined();
  const missing = await rig.askPlain("/v1/exec", { headers: { origin } });
  expect(missing.headers["access-control-allow-origin"]).toBe("*");
});

test("a WebSocket goes through without TLS, and stop cuts what is open", async () => {
  await using rig = await Rig.start();
  const socket = net.connect(rig.plainPort, "127.0.0.1");
  socket.write(
    `GET ${at("/v1/processes/x/attach")} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nabc`,
  );
  let text = "";
  socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
  await expect.poll(() => text).toMatch(/^HTTP\/1\.1 101 [\s\S]*hello abc$/);
  expect(rig.seen[0]?.url).toBe("/v1/processes/x/attach");
  const closed = once(socket, "close");
  await rig.edge.stop();
  await closed;
});

test("without TLS nothing is served beyond the loopback, and a taken port leaves no listener", async () => {
  const gateway = await FakeGateway.start();
  const make = (plain: { port: number; address: string }, port = 0) =>
    createEdge({
      tls: certificate,
      baseDomain,
      port,
      address: "127.0.0.1",
      plain,
      routes: gateway.client,
      hostDataPlane: () => undefined,
      clock: systemClock,
      log: silentLog,
    });
  const certificate = await selfSigned(baseDomain);
  for (const address of ["0.0.0.0", "::", "192.0.2.1", "127.example"])
    expect(() => make({ port: 0, address })).toThrow(/loopback/);
  const other = net.createServer().listen(0, "127.0.0.1");
  await once(other, "listening");
  const taken = (other.address() as net.AddressInfo).port;
  const free = net.createServer().listen(0, "127.0.0.1");
  await once(free, "listening");
  const { port } = free.address() as net.AddressInfo;
  await new Promise((resolve) => free.close(resolve));
  const edge = make({ port: taken, address: "127.0.0.1" }, port);
  await expect(edge.start()).rejects.toMatchObject({ code: "EADDRINUSE", port: taken });
  const again = net.createServer().listen(port, "127.0.0.1");
  await once(again, "listening");
  again.close();
  other.close();
});
