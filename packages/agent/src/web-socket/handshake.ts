import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { ClocheError } from "@cloche/protocol";

const salt = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** Checks a request for a WebSocket with `subprotocol`; answers the head that accepts it. Throws `invalid_argument`. */
export function acceptWebSocket(request: IncomingMessage, subprotocol: string, requestId: string): string {
  const { headers, method } = request;
  const key = headers["sec-websocket-key"] ?? "";
  const wrong = (message: string): ClocheError => new ClocheError("invalid_argument", message);
  if (method !== "GET" || headers.upgrade?.toLowerCase() !== "websocket") {
    throw wrong("this is a WebSocket: the request must be a GET with Upgrade: websocket");
  }
  if (headers["sec-websocket-version"] !== "13") throw wrong("Sec-WebSocket-Version must be 13");
  if (!/^[A-Za-z0-9+/]{22}==$/.test(key)) throw wrong("Sec-WebSocket-Key must be 16 bytes in base64");
  const offered = (headers["sec-websocket-protocol"] ?? "").split(",").map((name) => name.trim());
  if (!offered.includes(subprotocol)) throw wrong(`Sec-WebSocket-Protocol must offer ${subprotocol}`);
  const accept = createHash("sha1").update(`${key}${salt}`).digest("base64");
  return [
    "HTTP/1.1 101 Switching Protocols",
    "connection: upgrade",
    "upgrade: websocket",
    `sec-websocket-accept: ${accept}`,
    `sec-websocket-protocol: ${subprotocol}`,
    `x-request-id: ${requestId}`,
    "\r\n",
  ].join("\r\n");
}
