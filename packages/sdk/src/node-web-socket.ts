import type { OpenWebSocket, WebSocketLike } from "./index.ts";
import type { NodeRoute } from "./node-route.ts";

/** WebSockets for Node: it has none before 22, and its own takes no other target or authority. */
export const nodeWebSocket =
  (route: NodeRoute): OpenWebSocket =>
  async (url, protocols) => {
    // Loaded on first use.
    const { WebSocket } = await import("ws");
    const to = route.to(new URL(url));
    const isTls = url.startsWith("wss:");
    const tls = isTls ? await import("node:tls") : undefined;
    const net = await import("node:net");
    const secureContext = isTls ? await route.secureContext() : undefined;
    const socket = new WebSocket(url, protocols, {
      perMessageDeflate: false,
      createConnection: () =>
        tls?.connect({ ...to, port: Number(to.port), ...(secureContext && { secureContext }) }) ??
        net.connect({ ...to, port: Number(to.port) }),
    });
    // The close event follows and reports the error.
    socket.on("error", () => undefined);
    return socket as unknown as WebSocketLike;
  };
