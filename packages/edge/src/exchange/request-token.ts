import type { IncomingMessage } from "node:http";

/** Prefix of a subprotocol that carries the token, because a browser can set no other header of a WebSocket. */
export const tokenSubprotocol = "cloche.token.";

/**
 * The Authorization of a request: its header, or for a WebSocket without that header the token offered as a
 * subprotocol. The agent does not get that subprotocol.
 */
export function authorizationOf(request: IncomingMessage): string | undefined {
  const { authorization, upgrade } = request.headers;
  if (authorization !== undefined || upgrade?.toLowerCase() !== "websocket") return authorization;
  const offered = (request.headers["sec-websocket-protocol"] ?? "").split(",").map((name) => name.trim());
  const token = offered.find((name) => name.startsWith(tokenSubprotocol));
  return token === undefined ? undefined : `Bearer ${token.slice(tokenSubprotocol.length)}`;
}

const apiKey = /^(?:cloche_[\w-]{43}|e2b_[0-9a-f]{40})$/;

/** Whether the text has the form of an API key. The edge takes none; a user's server never gets one that was sent by mistake. */
export const isApiKey = (text: string): boolean => apiKey.test(text.trim());

/** Whether the text is a token of this service, valid or not: a user's server never gets such a token. */
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
