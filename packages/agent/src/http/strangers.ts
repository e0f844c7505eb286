/**
 * Bounds what users can take of the agent by connecting to its port: each connection holds some 60 KB of its memory until its handshake
 * has failed, and whoever inside never goes on with one keeps it for as long as a handshake may take. Edge and host come from outside, and
 * are not counted.
 */
import { networkInterfaces } from "node:os";
import type { Server } from "node:https";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

/** Handshakes under way at once; the next connection is closed before anything is made for it. */
export const strangersMax = 16;
/** Nobody inside has the key: a handshake on the machine's own loopback takes milliseconds. */
const HANDSHAKE_MS = 2_000;

/** Before `server` listens. */
export function boundStrangers(server: Server): void {
  const handshakes = server.listeners("connection");
  server.removeAllListeners("connection");
  /** By both addresses: one port of many loopback addresses makes many connections. */
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
        setTimeout(() => socket.destroy(), HANDSHAKE_MS),
      );
      socket.once("close", () => over(connection));
    }
    for (const begin of handshakes) begin.call(server, socket);
  });
  server.on("secureConnection", (socket: TLSSocket) => over(nameOf(socket)));
}

const nameOf = ({ remoteAddress, remotePort, localAddress }: Socket): string =>
  `${remoteAddress} ${remotePort} ${localAddress}`;

/** Whether its peer has an address of this machine; users may have given it others than it was made with. */
function isFromInside({ remoteAddress, localAddress }: Socket): boolean {
  // Without an address: gone already.
  if (remoteAddress === undefined || remoteAddress === localAddress || remoteAddress.startsWith("127."))
    return true;
  const own = Object.values(networkInterfaces()).flat();
  return own.some((address) => address?.address === remoteAddress);
}
