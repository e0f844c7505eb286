/**
 * Limits how many client connections are open at once, over all listeners, from before the TLS handshake until the
 * close. A client without requests keeps nobody out: when all places are taken, a new connection gets the place of the
 * connection that has been without a request for longest.
 *
 *   new ──▶ in the line ◀──answered──┐
 *              ├── request complete ──▶ busy: keeps its place
 *              └── all places are taken, and it is the first of the line ──▶ closed
 */
import type { Socket } from "node:net";
import type { EdgeLimits } from "./edge-limits.ts";
import type { Exchange } from "./exchange.ts";

/** A request under way. */
interface Request {
  isWhole(): boolean;
}

interface Place {
  close(): void;
  requests: Set<Request>;
}

const isBusy = ({ requests }: Place): boolean => [...requests].some((request) => request.isWhole());

export class ConnectionPlaces {
  readonly #most: number;
  readonly #places = new Map<string, Place>();
  /** Connections without a request, longest first, and connections whose request may not be complete yet. */
  readonly #line = new Map<string, Place>();

  constructor({ connections }: Pick<EdgeLimits, "connections">) {
    this.#most = connections;
  }

  get size(): number {
    return this.#places.size;
  }

  /** Takes a place for a new connection, if needed by closing another; false: all others have requests. */
  take(key: string, close: () => void): boolean {
    if (this.#places.size >= this.#most && !this.#closeOne()) return false;
    const place: Place = { close, requests: new Set() };
    this.#places.set(key, place);
    this.#line.set(key, place);
    return true;
  }

  #closeOne(): boolean {
    for (const [key, place] of this.#line) {
      if (isBusy(place)) this.#line.delete(key);
      else {
        this.leave(key);
        place.close();
        return true;
      }
    }
    return false;
  }

  leave(key: string): void {
    this.#places.delete(key);
    this.#line.delete(key);
  }

  /** The connection keeps its place from when the request is complete until the returned function is called. */
  ask(key: string, isWhole: () => boolean): () => void {
    const place = this.#places.get(key);
    if (place === undefined) return () => undefined;
    const request = { isWhole };
    place.requests.add(request);
    if (isWhole()) this.#line.delete(key);
    return () => {
      if (!place.requests.delete(request) || isBusy(place) || this.#places.get(key) !== place) return;
      this.#line.delete(key);
      this.#line.set(key, place);
    };
  }
}

/** The key of a connection, the same for the TCP socket and the TLS socket over it. */
export const connectionKey = ({ localAddress, localPort, remoteAddress, remotePort }: Socket): string =>
  `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`;

/** True: the body is so small that the edge reads all of it before it asks the agent. */
export function isKeptUntilWhole(exchange: Exchange, { bufferedBodyBytes }: EdgeLimits): boolean {
  const length = exchange.request.headers["content-length"];
  return exchange.hasBody && !exchange.expectsContinue && Number(length ?? Infinity) <= bufferedBodyBytes;
}

/** Counts a request for its connection until the returned function is called; a small body counts once complete. */
export function askFor(exchange: Exchange, places: ConnectionPlaces, limits: EdgeLimits): () => void {
  const isKept = isKeptUntilWhole(exchange, limits);
  const { request, wire } = exchange;
  return places.ask(connectionKey(wire.socket), () => !isKept || request.complete);
}
