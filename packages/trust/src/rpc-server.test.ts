/**
 * The server of calls closes even if callers keep streams open, and even if they have asked to close. Calls that break
 * harm nothing else.
 */
import { once } from "node:events";
import { type ClientHttp2Stream, connect as connectHttp2 } from "node:http2";
import { connect as connectTls } from "node:tls";
import { silentLog } from "@cloche/base";
import { recordedLog } from "@cloche/base/testing";
import { RouteService } from "@cloche/protocol/edge";
import { ClusterService } from "@cloche/protocol/host-registry";
import { createClient } from "@connectrpc/connect";
import { afterEach, expect, it, vi } from "vitest";
import { ClusterPort } from "./cluster-port.ts";
import { connectTo } from "./rpc-client.ts";
import { RpcServer } from "./rpc-server.ts";
import { TestInstallation } from "./testing/installation.ts";
import { clientSettings, serverSettings } from "./tls-settings.ts";

const close: (() => unknown)[] = [];
afterEach(async () => {
  for (const one of close.splice(0).toReversed()) await one();
});

it.each([
  ["that is open", false],
  ["whose caller has asked to close the connection", true],
])("ends in time with a stream %s", async (_, isClosing) => {
  const installation = await TestInstallation.open();
  let watched = false;
  const rpc = new RpcServer((router) => {
    router.service(RouteService, {
      // This stream never ends, not even when its caller goes away.
      async *watchRoutes() {
        watched = true;
        yield { sequence: 0n } as never;
        await new Promise(() => undefined);
      },
    });
  }, silentLog);
  const port = await ClusterPort.listen({
    tls: serverSettings(await installation.credentials({ role: "host", id: "h-1" })),
    protocols: { h2: { roles: ["edge"], serve: (socket) => rpc.serve(socket) } },
    address: "127.0.0.1",
    port: 0,
    log: silentLog,
  });
  close.push(() => port.close());
  const tls = clientSettings(await installation.credentials({ role: "edge", id: "e-1" }), { role: "host" });
  const session = connectHttp2("https://host", {
    createConnection: () => connectTls({ ...tls, host: "127.0.0.1", port: port.port, ALPNProtocols: ["h2"] }),
  });
  session.on("error", () => undefined);
  close.push(() => session.destroy());
  const stream = session.request({
    ":method": "POST",
    ":path": `/${RouteService.typeName}/WatchRoutes`,
    "content-type": "application/connect+proto",
  });
  stream.on("error", () => undefined);
  stream.end(Buffer.alloc(5));
  await expect.poll(() => watched).toBe(true);
  if (isClosing) {
    session.close();
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  const ended = await Promise.race([
    rpc.close().then(() => "ended"),
    new Promise((resolve) => setTimeout(() => resolve("hangs"), 5_000)),
  ]);
  expect(ended).toBe("ended");
  expect(rpc.connections).toBe(0);
});

it("outlives calls of strangers that break, and prints nothing of them but short lines", async () => {
  const printed = vi.spyOn(console, "error");
  close.push(() => printed.mockRestore());
  const { log, lines } = recordedLog();
  const installation = await TestInstallation.open();
  const gateway = await installation.gateway("g-1", 0, log);
  close.push(() => gateway.close());
  const session = connectHttp2(`https://${gateway.address}`, {
    ca: installation.authority.certificate,
    checkServerIdentity: () => undefined,
  });
  session.on("error", () => undefined);
  close.push(() => session.destroy());
  const call = (authority: string, headers = {}) => {
    const stream = session.request({
      ":method": "POST",
      ":path": `/${ClusterService.typeName}/GetInstallation`,
      ":authority": authority,
      "content-type": "application/proto",
      ...headers,
    });
    return stream.on("error", () => undefined);
  };
  const over = (stream: ClientHttp2Stream) =>
    new Promise((resolve) => stream.once("close", resolve).resume());
  // An authority that no URL can have.
  for (const authority of ["[", "a:b:c", `h:${"9".repeat(5_000)}`]) await over(call(authority).end());
  // A body that its caller cuts off, and one that it never sends.
  const cut = call("gateway");
  await new Promise((resolve) => cut.write("x", resolve));
  cut.close();
  await over(cut);
  const [headers] = (await once(call("gateway").end().resume(), "response")) as [Record<string, unknown>];
  expect(headers[":status"]).toBe(403);
  expect(printed).not.toHaveBeenCalled();
  expect(lines.length).toBeGreaterThan(2);
  for (const line of lines) expect(JSON.stringify(line).length).toBeLessThan(1_000);
});

it("lets a call go on whose timeout is longer than a timer can wait", async () => {
  const installation = await TestInstallation.open();
  const rpc = new RpcServer((router) => {
    router.service(ClusterService, {
      async getInstallation(_request, { signal }) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        return { id: signal.aborted ? "timed out" : "goes on" };
      },
    });
  }, silentLog);
  const port = await ClusterPort.listen({
    tls: serverSettings(await installation.credentials({ role: "gateway", id: "g-1" })),
    protocols: { h2: { roles: ["host"], serve: (socket) => rpc.serve(socket) } },
    address: "127.0.0.1",
    port: 0,
    log: silentLog,
  });
  close.push(
    () => port.close(),
    () => rpc.close(),
  );
  const own = await installation.credentials({ role: "host", id: "h-1" });
  const dialled = connectTo(`127.0.0.1:${port.port}`, { role: "gateway" }, () => own);
  close.push(dialled.close);
  const client = createClient(ClusterService, dialled.transport);
  const headers = { "connect-timeout-ms": "9999999999" };
  expect((await client.getInstallation({}, { headers })).id).toBe("goes on");
});

it("cuts a stranger off that sends window updates without end", async () => {
  const installation = await TestInstallation.open();
  const gateway = await installation.gateway("g-1");
  close.push(() => gateway.close());
  const socket = connectTls({
    port: gateway.port.port,
    host: "127.0.0.1",
    ca: installation.authority.certificate,
    checkServerIdentity: () => undefined,
    ALPNProtocols: ["h2"],
  });
  close.push(() => socket.destroy());
  socket.on("error", () => undefined).resume();
  const gone = new Promise((resolve) => socket.once("close", resolve));
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
  const update = Buffer.from([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
  const many = Buffer.concat(Array<Buffer>(1_000).fill(update));
  const flood = setInterval(() => socket.write(many), 5);
  close.push(() => clearInterval(flood));
  await gone;
});
