// The server of calls closes even if callers keep streams open, and even if they have asked to close.
import { connect as connectHttp2 } from "node:http2";
import { connect as connectTls } from "node:tls";
import { silentLog } from "@cloche/base";
import { RouteService } from "@cloche/protocol/edge";
import { afterEach, expect, it } from "vitest";
import { ClusterPort } from "./cluster-port.ts";
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
  });
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
