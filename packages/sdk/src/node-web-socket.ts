import type { OpenWebSocket, WebSocketLike } from "./index.ts";
import type { NodeRoute } from "./node-route.ts";

/** WebSockets for Node, which has none of its own before 22 and none that can be told where to go and whom to trust. */
export const nodeWebSocket =
  (route: NodeRoute): OpenWebSocket =>
  async (url, protocols) => {
    // Loaded by those who open one.
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
    // Told by its close, which follows.
    socket.on("error", () => undefined);
    return socket as unknown as WebSocketLike;
  };
