/**
 * Where edge and host reach the agent: TLS 1.3 by the machine's pre-shared key alone. Users share the network with the agent, so
 * whoever connects without the key gets a failed handshake and nothing else.
 *
 *   TCP ──handshake by the key──▶ HTTP          key replaced (Assign): connections of the old one end
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
    // Nothing is resumed: machines of one template would share the keys of tickets.
    secureOptions: constants.SSL_OP_NO_TICKET,
    handshakeTimeout: limits.headersTimeoutMs,
    // A client may close its sending side and still wait for the answer.
    allowHalfOpen: true,
  };
}

/** Ends what came in by a key of before: a clone has connections of its source. */
export function endWithTheirKey(server: Server, keys: ChannelKeys): void {
  const sockets = new Set<TLSSocket>();
  server.on("secureConnection", (socket: TLSSocket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });
  keys.onReplaced = (carriedBy) => {
    // The one that carried the new key brings its answer, and is the host's to close.
    for (const socket of sockets) if (socket !== carriedBy) socket.destroy();
  };
}
