/**
 * How an edge names the machine that it wants from the relay of another computer, before the bytes of its connection to the
 * agent follow: one line each way, within mutual TLS.
 *
 *   edge:  CLOCHE-RELAY/1 sbx-…\n        relay:  OK\n   or   NO not_found\n
 *   edge:  CLOCHE-RELAY/1 watch\n        relay:  OK\n   and, when its program is about to end,   DRAINING\n
 */
import { type ErrorCode, errorCodes } from "./errors.ts";
import { isSandboxId } from "./ids.ts";

/** How the TLS handshake names it (ALPN): a host's port has other protocols beside. */
export const relayProtocol = "cloche-relay";

const opening = "CLOCHE-RELAY/1 ";
/** Of either line, its end included. */
export const relayLineBytes = 128;

export const relayRequest = (sandboxId: string): string => `${opening}${sandboxId}\n`;

/** Without its end. Undefined: it is none. */
export function relayRequested(line: string): string | undefined {
  const id = line.startsWith(opening) ? line.slice(opening.length) : "";
  return isSandboxId(id) ? id : undefined;
}

/** Of a connection on which the relay says that it is about to end. */
export const relayWatch = `${opening}watch\n`;

/** Whether the line, without its end, asks for that. */
export const isRelayWatch = (line: string): boolean => `${line}\n` === relayWatch;

/** Said on such a connection: what is under way may end, and nothing new begins before another relay answers. */
export const relayDraining = "DRAINING\n";

export const relayAnswer = (refusal?: ErrorCode): string =>
  refusal === undefined ? "OK\n" : `NO ${refusal}\n`;

/** Without its end: what was refused, with which code; undefined: nothing. Anything else than an answer is `internal`. */
export function relayRefusal(line: string): ErrorCode | undefined {
  if (line === "OK") return undefined;
  const code = line.startsWith("NO ") ? line.slice(3) : "";
  return errorCodes.find((one) => one === code) ?? "internal";
}
