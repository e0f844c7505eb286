import { STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import { ClocheError, dataPlaneStatus } from "@cloche/protocol";

const whys: ReadonlyMap<string, string> = new Map([
  ["HPE_INVALID_EOF_STATE", "the request ended before it was whole"],
  ["HPE_INVALID_URL", "the request's target has bytes that must be percent-encoded"],
]);

/** The error for a client whose bytes node's parser refused. Undefined: the client only went away. */
export function parserProblem(
  error: NodeJS.ErrnoException,
): { error: ClocheError; status: number } | undefined {
  const { code } = error;
  if (code === "HPE_HEADER_OVERFLOW") return tooManyHeaders("the request's head is too large");
  if (code === "ERR_HTTP_REQUEST_TIMEOUT") {
    return {
      error: new ClocheError("deadline_exceeded", "the request's head did not arrive in time"),
      status: 408,
    };
  }
  const method = code === "HPE_INVALID_METHOD" ? methodOf(error) : undefined;
  if (method !== undefined) {
    const why = `method ${method} is not known here; HTTP/2 takes every method`;
    return { error: new ClocheError("unimplemented", why, { cause: error }), status: 501 };
  }
  if (code?.startsWith("HPE_")) {
    const why = whys.get(code) ?? "the request is not valid HTTP/1.1";
    return { error: new ClocheError("invalid_argument", why, { cause: error }), status: 400 };
  }
  return undefined;
}

/** The method of a request that is well-formed so far; undefined: the bytes are no request. */
function methodOf({ rawPacket }: NodeJS.ErrnoException & { rawPacket?: Buffer }): string | undefined {
  const line = rawPacket?.toString("latin1", 0, 1_024) ?? "";
  return /^(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) \/\S*(?: HTTP\/1\.\d\r\n|$)/.exec(line)?.[1];
}

export function tooManyHeaders(message: string): { error: ClocheError; status: number } {
  return { error: new ClocheError("resource_exhausted", message, { resource: "quota" }), status: 431 };
}

/**
 * Writes an error answer without a request to answer, and ends the connection once the client has had time to read it.
 */
export function answerRaw(
  socket: Duplex,
  error: ClocheError,
  requestId: string,
  lingerMs: number,
  status = dataPlaneStatus(error),
): void {
  const body = JSON.stringify(error.toBody());
  socket.write(
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? "Error"}\r\ncontent-type: application/json\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nx-request-id: ${requestId}\r\nconnection: close\r\n\r\n${body}`,
  );
  endGently(socket, lingerMs);
}

/** Ends the sending side; the client has `lingerMs` to read and to close. */
export function endGently(socket: Duplex, lingerMs: number): void {
  socket.end();
  const timer = setTimeout(() => socket.destroy(), lingerMs);
  socket.once("close", () => clearTimeout(timer));
}
