import type { IncomingMessage, ServerResponse } from "node:http";
import type { Exchange } from "../exchange/exchange.ts";

/** A port of a sandbox that a neighbour found a request to be for. */
export interface NeighbourPort {
  sandboxId: string;
  port: number;
  /** The sandbox's token, in place of the request's own; undefined: the request has what it needs. */
  token: string | undefined;
  /** Names of the neighbour's own headers, in lower case, which the sandbox's server does not get. */
  dropped: ReadonlySet<string>;
  /** The Host header for the sandbox's server. */
  host: string;
}

/** A request that the edge carries for its neighbour. */
export interface CarriedRequest {
  /** Cuts it, also after an upgrade. */
  drop(): void;
  /** Calls back when nothing more is carried, at once if that is so. */
  whenEnded(then: () => void): void;
}

export interface AskedNeighbour {
  /** The request came to the neighbour's own address. */
  atOwnAddress: boolean;
  /** Lets the edge answer, as for the port's own domain. Call it before anything is answered or read. */
  toPort(port: NeighbourPort): CarriedRequest;
}

/**
 * A part beside the edge that answers requests for some names below the base domain, and all at its own address, in its
 * own protocol. It is asked before any sandbox, checks credentials itself, and writes its own log lines.
 */
export interface Neighbour {
  takes(request: IncomingMessage): boolean;
  answer(request: IncomingMessage, response: ServerResponse, asked: AskedNeighbour): void;
}

/** True: the neighbour answers. The Host header must name the same host as the TLS connection, as for a sandbox. */
export function askNeighbour(
  neighbour: Neighbour | undefined,
  exchange: Exchange,
  atOwnAddress: boolean,
  forward: (port: NeighbourPort) => void,
): boolean {
  const { request, response, servername } = exchange;
  if (neighbour === undefined) return false;
  const name = (request.headers.host ?? "").toLowerCase().replace(/:\d+$/, "").replace(/\.$/, "");
  if (servername !== undefined && servername !== name) return false;
  if (!atOwnAddress && !neighbour.takes(request)) return false;
  exchange.logsItself = true;
  const toPort = (port: NeighbourPort): CarriedRequest => {
    exchange.logsItself = false;
    forward(port);
    return { drop: () => exchange.drop(), whenEnded: (then) => exchange.whenEnded(then) };
  };
  exchange.sendContinueIfAsked();
  neighbour.answer(request, response, { atOwnAddress, toPort });
  return true;
}
