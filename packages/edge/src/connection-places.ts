/**
 * The clients' connections that may be open at once, over all listeners, from before their TLS handshake until they are closed. Who
 * connects and asks nothing keeps nobody out: when all places are taken, a new connection gets the place of the one that has been
 * without a request for longest.
 *
 *   new ──▶ in the line ◀──answered──┐
 *              ├── request whole ──▶ busy: keeps its place
 *              └── all places are taken, and it is the first of the line ──▶ closed
 */
import type { Socket } from "node:net";
import type { EdgeLimits } from "./edge-limits.ts";
import type { Exchange } from "./exchange.ts";

/** One under way. */
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
  /** Those that ask nothing, in the order in which they began to, and those whose request may not be whole yet. */
  readonly #line = new Map<string, Place>();

  constructor({ connections }: Pick<EdgeLimits, "connections">) {
    this.#most = connections;
  }

  get size(): number {
    return this.#places.size;
  }

  /** A place for a new connection, if need be that of another, which is closed; false where all others ask something. */
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

  /** The connection keeps its place from when the request is whole until the answered function is called. */
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

/** The same for a connection and for the TLS over it. */
export const connectionKey = ({ localAddress, localPort, remoteAddress, remotePort }: Socket): string =>
  `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`;

/** A body so small is kept at the edge until it is whole, and only then is anybody asked anything. */
export function isKeptUntilWhole(exchange: Exchange, { bufferedBodyBytes }: EdgeLimits): boolean {
  const length = exchange.request.headers["content-length"];
  return exchange.hasBody && !exchange.expectsContinue && Number(length ?? Infinity) <= bufferedBodyBytes;
}

/** Counts a request to its connection until the answered function is called; one whose body is kept, when that is whole. */
export function askFor(exchange: Exchange, places: ConnectionPlaces, limits: EdgeLimits): () => void {
  const isKept = isKeptUntilWhole(exchange, limits);
  const { request, wire } = exchange;
  return places.ask(connectionKey(wire.socket), () => !isKept || request.complete);
}
