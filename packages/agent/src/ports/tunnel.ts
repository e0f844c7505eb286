import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { ClocheError, portTunnelPath } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import type { UpgradeRoute } from "../http/server.ts";
import { readToTheEnd } from "./early-answers.ts";
import { connectLoopback } from "./loopback.ts";

const connectTimeoutMs = 10_000;
const lingerMs = 5_000;
const upgradeToken = "cloche-port";

/**
 * `Upgrade: cloche-port` on portTunnelPath + <port>: a TCP stream to <port> of the sandbox's loopback. After the 101 both sides send raw
 * bytes, and the end of either side is passed on. 503 naming the port if no server listens. The agent's own port is refused.
 */
export function portTunnel(agentPort: number, touch: () => void): UpgradeRoute {
  return {
    prefix: portTunnelPath,
    handle: async (exchange, socket, head) => {
      if (exchange.request.headers.upgrade?.toLowerCase() !== upgradeToken) {
        throw new ClocheError("invalid_argument", `the Upgrade header must be ${upgradeToken}`);
      }
      const text = exchange.path.slice(portTunnelPath.length);
      const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : 0;
      if (port < 1 || port > 65_535) throw new ClocheError("invalid_argument", "port must be 1 to 65535");
      if (port === agentPort) throw new ClocheError("permission_denied", `port ${port} is the agent's own`);
      await tunnel(port, exchange, socket, head, touch);
    },
  };
}

async function tunnel(
  port: number,
  exchange: Exchange,
  client: Duplex,
  head: Buffer,
  touch: () => void,
): Promise<void> {
  const over = new AbortController();
  const tooLong = setTimeout(() => over.abort(new Error("connect timed out")), connectTimeoutMs);
  client.once("close", () => over.abort(new Error("the client went away")));
  let server: Socket;
  try {
    server = await connectLoopback(port, over.signal, { noDelay: true, allowHalfOpen: true });
  } catch (error) {
    throw new ClocheError("unavailable", `nothing accepts connections on port ${port} of the sandbox`, {
      cause: error,
      retryAfterSeconds: 1,
    });
  } finally {
    clearTimeout(tooLong);
  }
  if (client.destroyed) {
    server.destroy();
    return;
  }
  client.once("close", () => server.destroy());
  exchange.response.detachSocket(client as Socket);
  readToTheEnd(server);
  // After a reset by the server, data that it sent before still goes to the client.
  server.on("error", () => client.end());
  server.on("data", touch);
  client.on("data", touch);
  client.write(
    `HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: ${upgradeToken}\r\nx-request-id: ${exchange.requestId}\r\n\r\n`,
  );
  if (head.length > 0) server.write(head);
  server.pipe(client);
  client.pipe(server);
  server.once("close", () => linger(client));
}

/** Sends the end after the answer, and reads further data for a moment: otherwise a reset would destroy the answer. */
function linger(client: Duplex): void {
  const timer = setTimeout(() => client.destroy(), lingerMs);
  client.once("close", () => clearTimeout(timer));
  client.end();
  if (client.readableEnded) return (client as Socket).destroySoon();
  client.once("end", () => (client as Socket).destroySoon());
  client.resume();
}
