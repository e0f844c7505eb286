/**
 * Calls from one part of the cluster to another, over HTTP/2 and mutual TLS: to one address that must prove an
 * identity, or to any of several gateways that answers. One connection for each address, made at the first call and
 * again after it broke.
 */
import { connect as connectTls, type ConnectionOptions, type TLSSocket } from "node:tls";
import { boundHandshakeMessages, memberBounds, parseAddress } from "@cloche/base";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import type { Credentials } from "./authority.ts";
import type { Identity } from "./identity.ts";
import { Http2Session } from "./http2-session.ts";
import { clientSettings } from "./tls-settings.ts";

/** Deadline of TCP and TLS together: a computer that is gone answers neither. */
const connectMs = 3_000;

export interface RpcConnection {
  transport: Transport;
  /** Ends calls under way. */
  close(): void;
}

/** `credentials`: called for each connection, so that the next one uses a renewed certificate. */
export function connectTo(
  address: string,
  expected: Pick<Identity, "role"> & Partial<Identity>,
  credentials: () => Credentials,
): RpcConnection {
  return connectWith(address, () => clientSettings(credentials(), expected));
}

/** The same with other TLS settings: for a newcomer, which has no certificate yet. */
export function connectWith(address: string, settings: () => ConnectionOptions): RpcConnection {
  const { host, port } = parseAddress(address);
  const dial = (): TLSSocket => {
    const options: ConnectionOptions = { ...settings(), host, port, ALPNProtocols: ["h2"] };
    const socket = connectTls(options);
    boundHandshakeMessages(socket);
    socket.setNoDelay(true);
    const timer = setTimeout(() => socket.destroy(unreached(address)), connectMs);
    const settled = (): void => clearTimeout(timer);
    socket.once("secureConnect", settled).once("close", settled);
    return socket;
  };
  const session = new Http2Session(`https://${address}`, dial);
  const transport = createConnectTransport({
    baseUrl: session.authority,
    httpVersion: "2",
    sessionManager: session,
    readMaxBytes: memberBounds.answerBytes,
  });
  return { transport, close: () => session.close() };
}

const unreached = (address: string): Error =>
  Object.assign(new Error(`${address} did not answer within ${connectMs} ms`), { code: "ETIMEDOUT" });

/** Codes of an answer or of the transport: the gateway is away, or cannot serve now. */
const awayCodes: ReadonlySet<Code> = new Set([Code.Unavailable, Code.Canceled]);
/** Codes of a broken connection if the transport set them, with a cause. In a gateway's own answer they are final. */
const brokenCodes: ReadonlySet<Code> = new Set([Code.Internal, Code.Aborted, Code.Unknown]);
const isAway = (error: unknown): boolean => {
  const { code, cause } = ConnectError.from(error);
  return awayCodes.has(code) || (cause !== undefined && brokenCodes.has(code));
};

/**
 * Calls any of the gateways: first the one that answered last, then each of the others once if it is away. Calls
 * between parts can be repeated. When a stream breaks, its caller must begin it again; the next gateway is used then.
 */
export class GatewaysTransport implements Transport {
  readonly #gateways: readonly Transport[];
  #at = 0;

  constructor(gateways: readonly Transport[]) {
    this.#gateways = gateways;
  }

  unary: Transport["unary"] = async (...call) =>
    await this.#try((gateway) => gateway.unary(...call), call[1]);

  stream: Transport["stream"] = async (...call) => {
    // The messages of a call can be read only once.
    const sent: (typeof call)[4] = repeatable(call[4]);
    const [method, signal, timeoutMs, header, , contextValues] = call;
    const answer = await this.#try(
      (gateway) => gateway.stream(method, signal, timeoutMs, header, sent, contextValues),
      signal,
    );
    return { ...answer, message: this.#watched(answer.message, signal) };
  };

  async #try<T>(ask: (gateway: Transport) => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    const first = this.#at;
    for (let tries = 1; ; tries += 1) {
      const at = this.#at;
      const gateway = this.#gateways[at];
      if (gateway === undefined) throw new ConnectError("no gateway is known", Code.Unavailable);
      try {
        return await ask(gateway);
      } catch (error) {
        if (signal?.aborted === true || !isAway(error)) throw error;
        this.#next(at);
        if (tries >= this.#gateways.length || this.#at === first) throw error;
      }
    }
  }

  /** Moves on to the next gateway, unless another call that found the same gateway away has done so. */
  #next(from: number): void {
    if (this.#at === from) this.#at = (from + 1) % this.#gateways.length;
  }

  async *#watched<T>(messages: AsyncIterable<T>, signal: AbortSignal | undefined): AsyncGenerator<T> {
    const at = this.#at;
    try {
      yield* messages;
    } catch (error) {
      if (signal?.aborted !== true && isAway(error)) this.#next(at);
      throw error;
    }
  }
}

/**
 * Reads the messages of a call once, so that they can be sent to several gateways. Each call here sends one message.
 */
function repeatable<T>(messages: AsyncIterable<T>): AsyncIterable<T> {
  const read = (async () => {
    const all: T[] = [];
    for await (const message of messages) all.push(message);
    return all;
  })();
  read.catch(() => undefined);
  return {
    async *[Symbol.asyncIterator]() {
      yield* await read;
    },
  };
}

/** One transport over all gateways. */
export function connectToGateways(
  addresses: readonly string[],
  credentials: () => Credentials,
): RpcConnection {
  const connections = addresses.map((address) => connectTo(address, { role: "gateway" }, credentials));
  return {
    transport: new GatewaysTransport(connections.map(({ transport }) => transport)),
    close() {
      for (const connection of connections) connection.close();
    },
  };
}
