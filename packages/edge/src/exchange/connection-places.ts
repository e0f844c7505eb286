/** When a request counts for the place of its connection (ConnectionPlaces). */
import { connectionKey, type ConnectionPlaces } from "@cloche/base";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "./exchange.ts";

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
