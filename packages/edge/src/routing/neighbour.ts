import type { IncomingMessage, ServerResponse } from "node:http";
import type { Exchange } from "../exchange/exchange.ts";

/**
 * A part beside the edge that answers requests for some names below the base domain in its own protocol. It is asked
 * before any sandbox, and checks credentials itself.
 */
export interface Neighbour {
  takes(request: IncomingMessage): boolean;
  answer(request: IncomingMessage, response: ServerResponse): void;
}

/** True: the neighbour answers. The Host header must name the same host as the TLS connection, as for a sandbox. */
export function askNeighbour(neighbour: Neighbour | undefined, exchange: Exchange): boolean {
  const { request, response, servername } = exchange;
  if (neighbour === undefined || exchange.upgradeFirst !== undefined) return false;
  const name = (request.headers.host ?? "").toLowerCase().replace(/:\d+$/, "").replace(/\.$/, "");
  if (servername !== undefined && servername !== name) return false;
  if (!neighbour.takes(request)) return false;
  exchange.sendContinueIfAsked();
  neighbour.answer(request, response);
  return true;
}
