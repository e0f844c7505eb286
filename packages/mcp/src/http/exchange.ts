/** Converts between Node's request and response and those of the web, which the protocol's library uses. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { type NodeIncomingMessageLike, toWebRequest } from "@modelcontextprotocol/node";
import { boundJsonValues, ClocheError } from "@cloche/protocol";
import { Refusal } from "./caller.ts";

/**
 * The web request with the read body, and a signal that aborts when the client goes away before the answer. `whenRead`
 * gets the length of the body.
 */
export async function webRequestOf(
  request: IncomingMessage,
  response: ServerResponse,
  maxBytes: number,
  whenRead: (bytes: number) => void,
): Promise<Request> {
  const gone = new AbortController();
  response.once("close", () => gone.abort());
  try {
    const options = { signal: gone.signal, maxRequestBodySize: maxBytes };
    const web = await toWebRequest(request as NodeIncomingMessageLike, undefined, options);
    const body = web.body === null ? new Uint8Array() : await web.clone().bytes();
    whenRead(body.length);
    if (body.length > 0) boundJsonValues(body);
    return web;
  } catch (error) {
    if (error instanceof ClocheError) throw new Refusal(413, error.message);
    if ((error as { status?: number }).status === 413)
      throw new Refusal(413, `the body has more than ${maxBytes} bytes`);
    throw error;
  }
}

/**
 * Used instead of the library's adapter, which sends the headers of a stream only with its first message, and notices a client that went
 * away only at the next message: both can take long. A stream does not wait for its reader: the library would keep its
 * messages without a bound, and those of the response are counted (McpEndpointOptions.watchAnswer).
 */
export async function sendAnswer(response: ServerResponse, answer: Response): Promise<void> {
  if (response.destroyed) return void answer.body?.cancel();
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (answer.body === null) return void response.end();
  response.flushHeaders();
  const reader = answer.body.getReader();
  // A client that goes away cancels the stream; then there is no more to send.
  response.once("close", () => void reader.cancel().catch(() => undefined));
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read())
      response.write(piece.value);
    response.end();
  } catch {
    response.destroy();
  }
}
