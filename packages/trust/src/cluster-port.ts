/**
 * The one TLS port on which a part of a cluster serves the others. The handshake (ALPN) decides the protocol of a
 * connection, and the protocol's handler gets the connection with the identity that the certificate proved.
 *
 *   TCP ──handshake──▶ protocol known? may this role speak it? ──▶ its handler owns the socket
 *                         └── no: closed
 *
 * Owns every accepted socket until it closes. Nothing survives a crash; callers connect again.
 */
import { once } from "node:events";
import type { AddressInfo, Socket } from "node:net";
import { createServer, type Server, type TLSSocket, type TlsOptions } from "node:tls";
import {
  boundedLog,
  boundHandshakeMessages,
  addressOf,
  connectionKey,
  ConnectionPlaces,
  listenerBounds,
  type Log,
  memberBounds,
  type PlacesLimits,
  placesOf,
} from "@cloche/base";
import { type Identity, identityOf, type Role, uriOf } from "./identity.ts";

export interface PortProtocol {
  /** Roles that may speak the protocol; `anybody`: also callers without a certificate, whom the handler checks. */
  roles: readonly Role[] | "anybody";
  /** The handler owns the socket: it must listen for errors, read and end it. */
  serve(socket: TLSSocket, caller: Identity | undefined): void;
}

export interface ClusterPortOptions {
  /** serverSettings, or openServerSettings if a protocol is for anybody. */
  tls: TlsOptions;
  /** By ALPN name. */
  protocols: Readonly<Record<string, PortProtocol>>;
  /** An IP address. */
  address: string;
  /** 0: any free one. */
  port: number;
  log: Log;
  /** Bounds for callers who have not proved who they are; default: those of this file. */
  strangers?: Partial<PlacesLimits>;
  /** Connections that one member may have; default: its share of the port's. */
  connectionsOfMember?: number;
}

/** Callers in their handshake, and callers without a certificate: in all, and of one address. */
const strangersMax = 256;
const strangersOfAddressMax = 64;
/** A caller without a certificate has come to join, which takes one call. */
const strangerMs = 2 * listenerBounds.headMs;
const handshakeMs = 5_000;
const keepAliveMs = 15_000;

export class ClusterPort {
  readonly #server: Server;
  /** TCP sockets, also those still in their handshake. */
  readonly #sockets = new Set<Socket>();
  // One address may have all: which addresses are edges is known by their certificates alone.
  readonly #places = new ConnectionPlaces({ ...placesOf("cluster"), connectionsPerAddress: Infinity });
  readonly #strangers: ConnectionPlaces;
  /** Connections of each member, by its name. */
  readonly #members = new Map<string, number>();
  readonly #ofMember: number;

  private constructor(options: Omit<ClusterPortOptions, "address" | "port">) {
    const { tls, protocols, log, strangers, connectionsOfMember } = options;
    const { connectionShare } = memberBounds;
    this.#ofMember = connectionsOfMember ?? Math.floor(placesOf("cluster").connections * connectionShare);
    const strangersLog = boundedLog(log);
    this.#strangers = new ConnectionPlaces({
      connections: strangersMax,
      connectionsPerAddress: strangersOfAddressMax,
      ...strangers,
    });
    const settings = { handshakeTimeout: handshakeMs, noDelay: true, allowHalfOpen: true };
    const keepAlive = { keepAlive: true, keepAliveInitialDelay: keepAliveMs };
    const known = { ALPNProtocols: Object.keys(protocols) };
    this.#server = createServer({ ...tls, ...settings, ...keepAlive, ...known }, (socket) => {
      boundHandshakeMessages(socket);
      const refuse = (why: string): void => {
        strangersLog.warn(
          { why, address: socket.remoteAddress },
          "a connection to the cluster's port was refused",
        );
        socket.on("error", () => undefined);
        socket.destroy();
      };
      const protocol = protocols[socket.alpnProtocol || ""];
      if (protocol === undefined) return refuse("it speaks no protocol of this port");
      const caller = identityOf(socket);
      const { roles } = protocol;
      if (roles !== "anybody" && (caller === undefined || !roles.includes(caller.role)))
        return refuse(`${socket.alpnProtocol} is for ${roles.join(", ")}; it is ${caller?.role ?? "nobody"}`);
      if (caller === undefined) setTimeout(() => socket.destroy(), strangerMs).unref();
      else if (!this.#known(socket, uriOf(caller)))
        return refuse(`${uriOf(caller)} has too many connections`);
      protocol.serve(socket, caller);
    });
    this.#server.on("connection", (socket) => this.#accepted(socket));
    this.#server.on("tlsClientError", (err, socket) => {
      strangersLog.debug({ err }, "a handshake on the cluster's port failed");
      socket.destroy();
    });
  }

  #accepted(socket: Socket): void {
    const key = connectionKey(socket);
    const close = (): void => void socket.destroy();
    if (!this.#places.take(key, close) || !this.#strangers.take(key, close, addressOf(socket))) close();
    this.#sockets.add(socket);
    socket.once("close", () => {
      this.#sockets.delete(socket);
      this.#places.leave(key);
      this.#strangers.leave(key);
    });
  }

  /** The certificate proved who calls: the connection is kept until it closes. False: that member has all of its own. */
  #known(socket: TLSSocket, name: string): boolean {
    const key = connectionKey(socket);
    const others = this.#members.get(name) ?? 0;
    if (others >= this.#ofMember) return false;
    this.#members.set(name, others + 1);
    socket.once("close", () => {
      const left = (this.#members.get(name) ?? 1) - 1;
      if (left > 0) this.#members.set(name, left);
      else this.#members.delete(name);
    });
    this.#strangers.leave(key);
    this.#places.ask(key, () => true);
    return true;
  }

  /** Rejects when the port cannot be opened. */
  static async listen(options: ClusterPortOptions): Promise<ClusterPort> {
    const opened = new ClusterPort(options);
    opened.#server.listen(options.port, options.address);
    await once(opened.#server, "listening");
    return opened;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** New connections get the new certificate; open ones go on. */
  setTls(tls: TlsOptions): void {
    this.#server.setSecureContext(tls);
  }

  /** Takes no further connections; open ones go on. */
  stopListening(): void {
    this.#server.close();
  }

  /** Ends all connections. */
  async close(): Promise<void> {
    const closed = this.#server.listening ? once(this.#server, "close") : undefined;
    if (closed !== undefined) this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}
