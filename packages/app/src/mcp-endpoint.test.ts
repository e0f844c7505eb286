import { once } from "node:events";
import { createServer } from "node:http";
import net, { type AddressInfo } from "node:net";
import { heldAnswers, silentLog } from "@cloche/base";
import { expect, it, vi } from "vitest";
import { startMcp } from "./mcp-endpoint.ts";

const idleMs = 1_500;

async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** Sends a request that needs no gateway, and answers the head of its answer. */
async function ask(socket: net.Socket): Promise<string> {
  socket.write("GET / HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n");
  const [answer] = (await once(socket, "data")) as [Buffer];
  return answer.toString();
}

it("answers a client that asks again on its connection while it closes, and ends it with that", async () => {
  const mcpPort = await freePort();
  const address = { gatewayHost: "127.0.0.1", gatewayPort: 1, baseDomain: "x.test" };
  const needs = { gateway: { teamOfKey: async () => undefined }, edgeUrl: "https://127.0.0.1:1", caCert: "" };
  const close = await startMcp({ ...address, mcpPort, mcpHosts: [] }, needs, silentLog);
  const socket = net.connect(mcpPort, "127.0.0.1");
  expect(await ask(socket)).toMatch(/^HTTP\/1\.1 403 .*\r\nconnection: keep-alive\r\n/is);
  const closed = close(5_000, idleMs);
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(await ask(socket)).toMatch(/^HTTP\/1\.1 403 .*\r\nconnection: close\r\n/is);
  await closed;
});

it("counts answers for the team of the key", async () => {
  const watch = vi.spyOn(heldAnswers, "watch");
  const server = createServer((_request, response) => void response.end('{"sandboxes":[]}'));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const mcpPort = await freePort();
  const gatewayPort = (server.address() as AddressInfo).port;
  const settings = { gatewayHost: "127.0.0.1", gatewayPort, baseDomain: "x.test", mcpPort, mcpHosts: [] };
  const gateway = { teamOfKey: async () => "team-1" };
  const close = await startMcp(settings, { gateway, edgeUrl: "https://127.0.0.1:1", caCert: "" }, silentLog);
  await fetch(`http://127.0.0.1:${mcpPort}/mcp`, {
    method: "POST",
    headers: { authorization: "Bearer key" },
  });
  expect(watch).toHaveBeenCalledWith(expect.anything(), "team-1");
  await close(0);
  server.closeAllConnections();
  server.close();
});
