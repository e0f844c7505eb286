/**
 * How an edge tells the relay of another computer which machine it wants: one line each way, within mutual TLS, before
 * the bytes of its connection to the agent.
 *
 *   edge:  CLOCHE-RELAY/1 sbx-…\n        relay:  OK\n   or   NO not_found\n
 *   edge:  CLOCHE-RELAY/1 watch\n        relay:  OK\n   and, when its program is about to end,   DRAINING\n
 */
import { type ErrorCode, errorCodes } from "./errors.ts";
import { isSandboxId } from "./ids.ts";

/** The protocol's name in the TLS handshake (ALPN): a host's port also has other protocols. */
export const relayProtocol = "cloche-relay";

const opening = "CLOCHE-RELAY/1 ";
/** Longest line of either side, its end included. */
export const relayLineBytes = 128;

export const relayRequest = (sandboxId: string): string => `${opening}${sandboxId}\n`;

/** The sandbox id in a request's line, given without its end; undefined: not valid. */
export function relayRequested(line: string): string | undefined {
  const id = line.startsWith(opening) ? line.slice(opening.length) : "";
  return isSandboxId(id) ? id : undefined;
}

/** Request for a connection on which the relay says when its program is about to end. */
export const relayWatch = `${opening}watch\n`;

/** Whether the line, without its end, is that request. */
export const isRelayWatch = (line: string): boolean => `${line}\n` === relayWatch;

/** Sent on such a connection: requests under way may end, and no new one begins before another relay answers. */
export const relayDraining = "DRAINING\n";

export const relayAnswer = (refusal?: ErrorCode): string =>
  refusal === undefined ? "OK\n" : `NO ${refusal}\n`;

/** The code of a refusal, from a line without its end; undefined: accepted. A line that is no answer is `internal`. */
export function relayRefusal(line: string): ErrorCode | undefined {
  if (line === "OK") return undefined;
  const code = line.startsWith("NO ") ? line.slice(3) : "";
  return errorCodes.find((one) => one === code) ?? "internal";
}
