import type { IncomingMessage } from "node:http";

/** What a browser offers beside its subprotocol, since it can set no other header of a WebSocket: the token follows. */
export const tokenSubprotocol = "cloche.token.";

/**
 * The Authorization of a request: its own, or of a WebSocket without one the token that it offers as a subprotocol. What goes on
 * to the agent no longer offers it.
 */
export function authorizationOf(request: IncomingMessage): string | undefined {
  const { authorization, upgrade } = request.headers;
  if (authorization !== undefined || upgrade?.toLowerCase() !== "websocket") return authorization;
  const offered = (request.headers["sec-websocket-protocol"] ?? "").split(",").map((name) => name.trim());
  const token = offered.find((name) => name.startsWith(tokenSubprotocol));
  return token === undefined ? undefined : `Bearer ${token.slice(tokenSubprotocol.length)}`;
}

/** Whether the text is a token of this service, valid or not: such a one is never shown to a user's server. */
export function isOurToken(token: string, issuer: string): boolean {
  try {
    const payload = JSON.parse(
      Buffer.from(token.split(".")[1] ?? "", "base64url").toString("utf8"),
    ) as unknown;
    return (payload as { iss?: unknown } | null)?.iss === issuer;
  } catch {
    return false;
  }
}
