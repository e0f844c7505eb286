/**
 * `GET /v1/ports/{port}/connect`: TCP to a server on the sandbox's loopback over one WebSocket, for protocols other than HTTP. The first
 * byte of a binary message is its channel, as on attach: 0 to the server, 1 from it, 255 followed by 0 or 1 when that half has ended.
 */
import type { Socket } from "node:net";
import { ClocheError, limits } from "@cloche/protocol";
import type { Route } from "../http/router.ts";
import type { UpgradeRoute } from "../http/server.ts";
import { goesOut } from "../processes/output-reader.ts";
import { WebSocketConnection } from "../web-socket/connection.ts";
import { WebSocketError } from "../web-socket/frames.ts";
import { acceptWebSocket } from "../web-socket/handshake.ts";
import { connectLoopback } from "./loopback.ts";

const subprotocol = "v5.channel.k8s.io";
const prefix = "/v1/ports/";
const connectPath = /^\/v1\/ports\/([^/]+)\/connect$/;
const channels = { toServer: 0, fromServer: 1, close: 255 } as const;
const connectTimeoutMs = 10_000;

/** The path without an Upgrade, so that it is a known path of the router. */
export const portConnectRoute: Route = {
  method: "GET",
  path: `${prefix}:port/connect`,
  handle: () => {
    throw new ClocheError(
      "invalid_argument",
      "connect is a WebSocket: the request must have Upgrade: websocket",
    );
  },
};

export function portConnect(agentPort: number, touch: () => void): UpgradeRoute {
  return {
    prefix,
    handle: async (exchange, socket, head) => {
      const text = connectPath.exec(exchange.path)?.[1];
      if (text === undefined) throw new ClocheError("not_found", "nothing to upgrade to at this path");
      const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : 0;
      if (port < 1 || port > 65_535) throw new ClocheError("invalid_argument", "port must be 1 to 65535");
      if (port === agentPort) throw new ClocheError("permission_denied", `port ${port} is the agent's own`);
      const answer = acceptWebSocket(exchange.request, subprotocol, exchange.requestId);
      const server = await connected(port, socket);
      exchange.response.detachSocket(socket as Socket);
      socket.write(answer);
      relay(
        server,
        new WebSocketConnection(socket, head, limits.processMessageBytes, taker(server, touch)),
        touch,
      );
    },
  };
}

async function connected(
  port: number,
  client: { once(event: "close", listener: () => void): unknown },
): Promise<Socket> {
  const over = new AbortController();
  const timer = setTimeout(() => over.abort(new Error("connect timed out")), connectTimeoutMs);
  client.once("close", () => over.abort(new Error("the client went away")));
  try {
    return await connectLoopback(port, over.signal, { noDelay: true, allowHalfOpen: true });
  } catch (error) {
    throw new ClocheError("unavailable", `nothing accepts connections on port ${port} of the sandbox`, {
      cause: error,
      retryAfterSeconds: 1,
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Passes the client's data to the server, at the server's pace. */
const taker = (server: Socket, touch: () => void) => ({
  onMessage(data: Buffer, kind: "text" | "binary"): void | Promise<void> {
    touch();
    if (kind === "text")
      throw new WebSocketError(1003, "messages must be binary, their first byte the channel");
    if (data[0] === channels.close && data[1] === channels.toServer) return void server.end();
    if (data[0] !== channels.toServer)
      throw new WebSocketError(1008, `channel ${data[0]} is not one that a client writes to`);
    if (server.destroyed || server.write(data.subarray(1))) return undefined;
    return goesOut(server).then(() => undefined);
  },
});

/** Passes the server's data to the client, at the client's pace. The end of either side is passed to the other. */
function relay(server: Socket, connection: WebSocketConnection, touch: () => void): void {
  server.on("data", (data: Buffer) => {
    touch();
    if (connection.send(channels.fromServer, data)) return;
    server.pause();
    void goesOut(connection.socket).then((out) => (out ? server.resume() : connection.socket.destroy()));
  });
  server.once("end", () => connection.send(channels.close, Buffer.of(channels.fromServer)));
  server.on("error", () => undefined);
  server.once("close", () => connection.close());
  connection.over.addEventListener("abort", () => server.destroy(), { once: true });
  if (connection.over.aborted) server.destroy();
}
