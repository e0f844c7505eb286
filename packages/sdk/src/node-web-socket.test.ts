import { once } from "node:events";
import http from "node:http";
import https from "node:https";
import type { AddressInfo, Server } from "node:net";
import { expect, test } from "vitest";
import { WebSocketServer } from "ws";
import { nodeFetch, type NodeFetchOptions } from "./node.ts";
import { selfSigned } from "./testing/certificate.ts";
import { opened } from "./web-socket.ts";

/** Echoes each message, after the Host and the subprotocol it was opened with. */
async function echo(server: Server): Promise<{ port: number; close(): void }> {
  const sockets = new WebSocketServer({ server: server as http.Server });
  sockets.on("connection", (socket, request) => {
    socket.send(`${request.headers.host} ${socket.protocol}`);
    socket.on("message", (data, isBinary) => socket.send(data, { binary: isBinary }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      sockets.close();
      server.close();
    },
  };
}

/** What comes back for some bytes, and what was said at the opening. */
async function exchange(url: string, options: NodeFetchOptions): Promise<[string, Uint8Array]> {
  const fetch = nodeFetch(options);
  const socket = await fetch.webSocket(url, ["a.b", "c.d"]);
  const messages: unknown[] = [];
  socket.addEventListener("message", ({ data }) => messages.push(data));
  await opened(socket, {});
  socket.send(Uint8Array.of(1, 2, 255));
  await expect.poll(() => messages.length).toBe(2);
  const closed = new Promise<number>((resolve) =>
    socket.addEventListener("close", ({ code }) => resolve(code)),
  );
  socket.close(1000);
  expect(await closed).toBe(1000);
  await fetch.close();
  return [String(messages[0]), new Uint8Array(messages[1] as ArrayBuffer)];
}

test("a WebSocket opens on plain HTTP, and by TLS at the edge for a domain that does not resolve", async () => {
  const plain = await echo(http.createServer());
  expect(await exchange(`ws://127.0.0.1:${plain.port}/x`, {})).toEqual([
    `127.0.0.1:${plain.port} a.b`,
    Uint8Array.of(1, 2, 255),
  ]);
  plain.close();

  const { cert, key } = await selfSigned("sandboxes.invalid");
  const edge = await echo(https.createServer({ cert, key }));
  const edgeUrl = `https://127.0.0.1:${edge.port}`;
  const url = `wss://sbx-a.sandboxes.invalid:${edge.port}/x`;
  const [said] = await exchange(url, { caCert: cert, edgeUrl, baseDomain: "sandboxes.invalid" });
  expect(said).toBe(`sbx-a.sandboxes.invalid:${edge.port} a.b`);

  const stranger = nodeFetch({ edgeUrl, baseDomain: "sandboxes.invalid" });
  await expect(opened(await stranger.webSocket(url, []), {})).rejects.toThrow("could not be opened (1006)");
  edge.close();
});
