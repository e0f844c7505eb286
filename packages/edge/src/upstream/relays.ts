/** Connections to hosts on other computers: to agents through the relay (host/src/relay), and watches for DRAINING. */
import { once } from "node:events";
import type { Duplex } from "node:stream";
import { connect, type ConnectionOptions, type TLSSocket } from "node:tls";
import { boundHandshakeMessages, parseAddress, readLine } from "@cloche/base";
import {
  ClocheError,
  relayDraining,
  relayLineBytes,
  relayProtocol,
  relayRefusal,
  relayRequest,
  relayWatch,
} from "@cloche/protocol";

const connectMs = 5_000;
const wire = { allowHalfOpen: true, keepAlive: true, keepAliveInitialDelay: 15_000 };

/** How an edge reaches hosts on other computers. */
export interface HostLinks {
  /** TLS settings that accept only that host (trust's clientSettings). */
  tlsTo(hostId: string): ConnectionOptions;
}

export interface RelayAddress {
  host: string;
  port: number;
  /** Must accept only that host (trust's clientSettings). */
  tls: ConnectionOptions;
}

/** `address`: host:port. */
export const relayAddressOf = (links: HostLinks, hostId: string, address: string): RelayAddress => ({
  ...parseAddress(address),
  tls: links.tlsTo(hostId),
});

/** A paused connection through the relay to the machine's agent. Throws a refusal, or `unavailable`. */
export const connectThroughRelay = (relay: RelayAddress, sandboxId: string): Promise<Duplex> =>
  ask(relay, relayRequest(sandboxId), `sandbox ${JSON.stringify(sandboxId)}`);

/** Calls `draining` once when the host's program is about to end, and `ended` when the connection is over. */
export async function watchRelay(
  relay: RelayAddress,
  draining: () => void,
  ended: () => void,
): Promise<{ close(): void }> {
  const socket = await ask(relay, relayWatch, "its relay");
  let received = "";
  socket.on("data", (chunk: Buffer) => {
    received += chunk.toString("latin1");
    if (received === relayDraining) draining();
    // A new watch is opened for the host's next program.
    if (received.length >= relayDraining.length) socket.destroy();
  });
  socket.once("end", () => socket.destroy());
  socket.on("error", () => socket.destroy());
  socket.once("close", ended);
  // The socket is paused until now.
  socket.resume();
  return { close: () => void socket.destroy() };
}

async function ask(relay: RelayAddress, line: string, what: string): Promise<Duplex> {
  const socket = await connectToHost(relay, relayProtocol);
  try {
    socket.write(line);
    const refusal = relayRefusal(await readLine(socket, relayLineBytes, AbortSignal.timeout(connectMs)));
    if (refusal === undefined) return socket;
    throw new ClocheError(refusal, `the host refused to reach ${what}`);
  } catch (cause) {
    socket.destroy();
    throw cause instanceof ClocheError ? cause : unreachable(cause);
  }
}

/** `protocol`: the ALPN protocol of the host's port. Throws `unavailable`. */
export async function connectToHost({ host, port, tls }: RelayAddress, protocol: string): Promise<TLSSocket> {
  const options: ConnectionOptions = { ...tls, host, port, ALPNProtocols: [protocol], ...wire };
  const socket = connect(options);
  boundHandshakeMessages(socket);
  try {
    await once(socket, "secureConnect", { signal: AbortSignal.timeout(connectMs) });
    socket.setNoDelay(true);
    return socket;
  } catch (cause) {
    socket.destroy();
    throw unreachable(cause);
  }
}

const unreachable = (cause: unknown): ClocheError =>
  new ClocheError("unavailable", "the sandbox's host cannot be reached", { cause, retryAfterSeconds: 1 });
