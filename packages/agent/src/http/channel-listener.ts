/**
 * The listener for edge and host: TLS 1.3 with the machine's pre-shared key. Users share the network with the agent, so a client
 * without the key gets only a failed handshake.
 *
 *   TCP ──handshake by the key──▶ HTTP          key replaced (Assign): connections of the old key end
 */
import { constants } from "node:crypto";
import type { Server, ServerOptions } from "node:https";
import type { TLSSocket } from "node:tls";
import { channel, limits } from "@cloche/protocol";
import type { ChannelKeys } from "../auth/channel-keys.ts";

export function channelOptions(keys: ChannelKeys): ServerOptions {
  return {
    pskCallback: (_socket, identity) => (identity === channel.identity ? keys.preSharedKey : null),
    ciphers: channel.cipher,
    ecdhCurve: channel.group,
    minVersion: channel.version,
    maxVersion: channel.version,
    // No TLS session tickets: machines of one template would share the ticket keys.
    secureOptions: constants.SSL_OP_NO_TICKET,
    handshakeTimeout: limits.headersTimeoutMs,
    // A client may close its sending side and still wait for the answer.
    allowHalfOpen: true,
  };
}

/** Ends connections that were made with a former key: a clone has the connections of its source. */
export function endWithTheirKey(server: Server, keys: ChannelKeys): void {
  const sockets = new Set<TLSSocket>();
  server.on("secureConnection", (socket: TLSSocket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });
  keys.onReplaced = (carriedBy) => {
    // The connection that brought the new key must still carry the answer; the host closes it.
    for (const socket of sockets) if (socket !== carriedBy) socket.destroy();
  };
}
