/**
 * Limits the memory that users can take from the agent by connecting to its port. Each connection holds some 60 KB until its handshake
 * has failed, and a client inside that sends nothing holds it until the handshake times out. Edge and host connect from outside and
 * are not counted.
 */
import { networkInterfaces } from "node:os";
import type { Server } from "node:https";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

/** Handshakes under way at once; further connections are closed before memory is allocated for them. */
export const strangersMax = 16;
/** A handshake on the machine's loopback takes milliseconds, and no client inside has the key. */
const handshakeMs = 2_000;

/** Call before `server` listens. */
export function boundStrangers(server: Server): void {
  const handshakes = server.listeners("connection");
  server.removeAllListeners("connection");
  /** Keyed by both addresses, since one port of many loopback addresses can make many connections. */
  const underWay = new Map<string, NodeJS.Timeout>();
  const over = (connection: string): void => {
    clearTimeout(underWay.get(connection));
    underWay.delete(connection);
  };
  server.on("connection", (socket: Socket) => {
    if (isFromInside(socket)) {
      if (underWay.size >= strangersMax) {
        socket.destroy();
        return;
      }
      const connection = nameOf(socket);
      underWay.set(
        connection,
        setTimeout(() => socket.destroy(), handshakeMs),
      );
      socket.once("close", () => over(connection));
    }
    for (const begin of handshakes) begin.call(server, socket);
  });
  server.on("secureConnection", (socket: TLSSocket) => over(nameOf(socket)));
}

const nameOf = ({ remoteAddress, remotePort, localAddress }: Socket): string =>
  `${remoteAddress} ${remotePort} ${localAddress}`;

/** Whether the peer has an address of this machine. Users may have added addresses. */
function isFromInside({ remoteAddress, localAddress }: Socket): boolean {
  // Without an address the connection is closed already.
  if (remoteAddress === undefined || remoteAddress === localAddress || remoteAddress.startsWith("127."))
    return true;
  const own = Object.values(networkInterfaces()).flat();
  return own.some((address) => address?.address === remoteAddress);
}
