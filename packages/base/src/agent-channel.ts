/** The caller's end of the channel to an agent (protocol's channel.ts): keys, connections, inner tokens. */
import { createHmac, hkdfSync } from "node:crypto";
import type { TcpNetConnectOpts } from "node:net";
import type { Duplex } from "node:stream";
import {
  type ConnectionOptions,
  connect,
  createSecureContext,
  type SecureContext,
  type TLSSocket,
} from "node:tls";
import { channel, type InnerTokenClaims, innerTokenHeader } from "@cloche/protocol";
import { boundHandshakeMessages } from "./listeners/handshake-messages.ts";

/** The channel key, which edges get; derived from a machine's control secret. */
export const channelKeyOf = (controlSecret: string): Buffer => derive(controlSecret, channel.labels.key);

function derive(from: string | Uint8Array, label: string): Buffer {
  return Buffer.from(hkdfSync("sha256", from, "", label, channel.keyBytes));
}

/** The pre-shared key of the TLS handshake. */
export const preSharedKeyOf = (channelKey: Uint8Array): Buffer =>
  derive(channelKey, channel.labels.preSharedKey);

export interface ChannelAddress {
  host: string;
  port: number;
  /** The channel key. */
  key: Uint8Array;
}

let context: SecureContext | undefined;

/**
 * Connects to the agent that has the key. Another program that listens there gets no byte of a request: without the key
 * there is no handshake, and no certificate is accepted instead, whoever signed it.
 */
export function connectToAgent({ host, port, key }: ChannelAddress): TLSSocket {
  const options: ConnectionOptions & TcpNetConnectOpts = {
    ...channelSettings(key),
    host,
    port,
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
  };
  return bounded(connect(options));
}

/** The same over an existing connection to the agent: through the relay of another computer. */
export const connectToAgentOver = (socket: Duplex, key: Uint8Array): TLSSocket =>
  bounded(connect({ ...channelSettings(key), socket }));

function bounded(socket: TLSSocket): TLSSocket {
  boundHandshakeMessages(socket);
  return socket;
}

function channelSettings(key: Uint8Array): ConnectionOptions & { allowHalfOpen: boolean } {
  const psk = preSharedKeyOf(key);
  context ??= createSecureContext({
    ca: [],
    ciphers: channel.cipher,
    ecdhCurve: channel.group,
    minVersion: channel.version,
    maxVersion: channel.version,
  });
  return {
    secureContext: context,
    pskCallback: () => ({ psk, identity: channel.identity }),
    checkServerIdentity: (_host, certificate) =>
      Object.keys(certificate).length === 0 ? undefined : new Error("the agent showed a certificate"),
    allowHalfOpen: true,
  };
}

/** True: something listens there, but does not have the key, or is no agent at all. */
export const isForeignAgent = (error: unknown): boolean => {
  const { code } = (error ?? {}) as { code?: unknown };
  // EPROTO: the same failure of a handshake, when a write waits for it.
  return typeof code === "string" && (code.startsWith("ERR_SSL_") || code === "EPROTO");
};

/**
 * True: the listener took no pre-shared key (alert 40; to a wrong key it says alert 51). An agent does so once if its wall clock is
 * set forward by minutes within the handshake, as a virtual machine's is after a restore (native/vm/vm-clock.c): OpenSSL gives
 * the key a lifetime, and takes it for expired. Nothing of a request was sent: it may be sent again.
 */
export const isKeyNotTaken = (error: unknown): boolean =>
  isForeignAgent(error) && /\bSSL alert number 40\b/.test((error as Error).message);

const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
const header = part(innerTokenHeader);

/** Signs the inner tokens of one machine. */
export class InnerTokens {
  readonly #key: Buffer;

  constructor(channelKey: Uint8Array) {
    this.#key = derive(channelKey, channel.labels.tokenKey);
  }

  sign(claims: InnerTokenClaims): string {
    const signed = `${header}.${part(claims)}`;
    return `${signed}.${createHmac("sha256", this.#key).update(signed).digest("base64url")}`;
  }
}
