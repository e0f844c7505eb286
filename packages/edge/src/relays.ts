/** Connections to agents on other computers, through the relay of their host (host/src/relay). */
import { once } from "node:events";
import type { Duplex } from "node:stream";
import { connect, type ConnectionOptions } from "node:tls";
import { readLine } from "@cloche/base";
import { ClocheError, relayLineBytes, relayProtocol, relayRefusal, relayRequest } from "@cloche/protocol";

const connectMs = 5_000;

const wire = {
  ALPNProtocols: [relayProtocol],
  allowHalfOpen: true,
  keepAlive: true,
  keepAliveInitialDelay: 15_000,
};

/** How an edge reaches hosts on other computers. */
export interface HostLinks {
  /** TLS settings that refuse whoever is not that host (trust's clientSettings). */
  tlsTo(hostId: string): ConnectionOptions;
}

export interface RelayAddress {
  host: string;
  port: number;
  /** Must refuse whoever is not that host (trust's clientSettings). */
  tls: ConnectionOptions;
}

/** A connection to the machine's agent, as if it had been connected to itself; paused. Throws the relay's refusal; `unavailable`: no relay. */
export async function connectThroughRelay(relay: RelayAddress, sandboxId: string): Promise<Duplex> {
  const { host, port, tls } = relay;
  const socket = connect({ ...tls, host, port, ...wire });
  const signal = AbortSignal.timeout(connectMs);
  try {
    await once(socket, "secureConnect", { signal });
    socket.setNoDelay(true);
    socket.write(relayRequest(sandboxId));
    const refusal = relayRefusal(await readLine(socket, relayLineBytes, signal));
    if (refusal === undefined) return socket;
    throw new ClocheError(refusal, `the host refused to reach sandbox ${JSON.stringify(sandboxId)}`);
  } catch (cause) {
    socket.destroy();
    if (cause instanceof ClocheError) throw cause;
    throw new ClocheError("unavailable", "the sandbox's host cannot be reached", {
      cause,
      retryAfterSeconds: 1,
    });
  }
}
