/** One exchange between Node's pair and the web's, which the protocol's library takes. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { type NodeIncomingMessageLike, toWebRequest } from "@modelcontextprotocol/node";
import { Refusal } from "./caller.ts";

/** With the body read, and a signal that aborts when the client goes away before it is answered. */
export async function webRequestOf(
  request: IncomingMessage,
  response: ServerResponse,
  maxBytes: number,
): Promise<Request> {
  const gone = new AbortController();
  response.once("close", () => gone.abort());
  try {
    const options = { signal: gone.signal, maxRequestBodySize: maxBytes };
    return await toWebRequest(request as NodeIncomingMessageLike, undefined, options);
  } catch (error) {
    if ((error as { status?: number }).status === 413)
      throw new Refusal(413, `the body has more than ${maxBytes} bytes`);
    throw error;
  }
}

/**
 * The library's own adapter sends the headers of a stream with its first message, and hears of a client that went away at
 * the next: both can be far off.
 */
export async function sendAnswer(response: ServerResponse, answer: Response): Promise<void> {
  if (response.destroyed) return void answer.body?.cancel();
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (answer.body === null) return void response.end();
  response.flushHeaders();
  // A client that goes away cancels the stream; nothing is left to be told then.
  await pipeline(Readable.fromWeb(answer.body as Parameters<typeof Readable.fromWeb>[0]), response).catch(
    () => undefined,
  );
}
