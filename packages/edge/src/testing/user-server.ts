import { once } from "node:events";
import http, { type IncomingMessage, type OutgoingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";

export interface UserServer {
  port: number;
  seen: IncomingMessage[];
  [Symbol.dispose](): void;
}

/**
 * A user's server in the sandbox: answers with `headers`, and with those that it got as the body. On an upgraded connection it says hello
 * and sends back what comes.
 */
export async function userServer(
  headers: OutgoingHttpHeaders = { "set-cookie": "session=1" },
): Promise<UserServer> {
  const seen: IncomingMessage[] = [];
  const server = http.createServer((request, response) => {
    seen.push(request);
    response.writeHead(200, headers);
    response.end(JSON.stringify(request.headers));
  });
  server.on("upgrade", (request: IncomingMessage, socket) => {
    seen.push(request);
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSet-Cookie: a=1\r\n\r\nhello",
    );
    socket.on("error", () => undefined);
    socket.pipe(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    seen,
    [Symbol.dispose]() {
      server.closeAllConnections();
      server.close();
    },
  };
}
