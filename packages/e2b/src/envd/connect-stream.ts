/** Connect's streams over HTTP/1.1, JSON, without compression: messages in envelopes of a flag byte and a length. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { asBuffer, type Hold, listenerBounds, parseJson } from "@cloche/base";
import { ClocheError, GatheredBytes, limits } from "@cloche/protocol";
import { E2bError } from "../e2b-error.ts";
import { type Fields, whenClosed, written } from "../http.ts";

const headBytes = 5;
const endFlag = 0b10;
const compressedFlag = 0b1;
export const streamType = "application/connect+json";

/** The messages of a request's body, while they arrive. `holdOf` answers what counts bytes of a large one. */
export async function* readMessages(
  request: IncomingMessage,
  holdOf: () => Promise<Hold>,
): AsyncGenerator<Fields, void> {
  const held = new GatheredBytes();
  let hold: Hold | undefined;
  let counted = 0;
  let wanted = headBytes;
  try {
    for await (const piece of request as AsyncIterable<Buffer>) {
      held.push(piece);
      if (held.length > listenerBounds.strangerBytes) {
        hold ??= await holdOf();
        hold.add(held.length - counted);
        counted = held.length;
      }
      if (held.length < wanted) continue;
      let bytes = asBuffer(held.take());
      for (;;) {
        wanted = bytes.length < headBytes ? headBytes : headBytes + lengthOf(bytes);
        if (bytes.length < wanted) break;
        const flags = bytes.readUInt8(0);
        const message = bytes.subarray(headBytes, wanted);
        bytes = bytes.subarray(wanted);
        if ((flags & endFlag) !== 0) return;
        yield parseMessage(message);
      }
      held.push(bytes);
      hold?.release();
      counted = 0;
    }
  } finally {
    hold?.release();
  }
  if (held.length > 0) throw new E2bError("invalid_argument", "the body ends within a message");
}

/** The length of the message whose envelope `bytes` begin with. */
function lengthOf(bytes: Buffer): number {
  const length = bytes.readUInt32BE(1);
  if (length > limits.messageBytes)
    throw new E2bError("resource_exhausted", `a message is larger than ${limits.messageBytes} bytes`);
  if ((bytes.readUInt8(0) & compressedFlag) !== 0)
    throw new E2bError("unimplemented", "messages are taken without compression");
  return length;
}

/** The single message of a call whose answer is a stream. */
export async function readMessage(request: IncomingMessage, holdOf: () => Promise<Hold>): Promise<Fields> {
  for await (const message of readMessages(request, holdOf)) return message;
  throw new E2bError("invalid_argument", "the body must hold one message");
}

export function parseMessage(bytes: Uint8Array): Fields {
  if (bytes.length === 0) return {};
  let parsed: unknown;
  try {
    parsed = parseJson(bytes);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new E2bError("invalid_argument", "the message is not valid JSON", { cause: error });
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed))
    throw new E2bError("invalid_argument", "the message must be a JSON object");
  return parsed as Fields;
}

/** An answer of many messages. The writer waits for a slow reader. */
export class MessageStream {
  readonly #response: ServerResponse;
  #lastMs = performance.now();
  #keepAlive: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse) {
    this.#response = response;
  }

  /** Sends `message` after each `everyMs` without another message, so that proxies and clients keep the stream open. */
  keepAlive(message: Fields, everyMs: number): void {
    const check = (): void => {
      if (performance.now() - this.#lastMs >= everyMs && !this.#response.writableNeedDrain)
        void this.send(message);
    };
    this.#keepAlive = setInterval(check, everyMs);
    whenClosed(this.#response, () => clearInterval(this.#keepAlive));
  }

  async send(message: Fields): Promise<void> {
    this.#begin();
    this.#lastMs = performance.now();
    await written(this.#response, envelope(0, message));
  }

  end(error?: E2bError): void {
    clearInterval(this.#keepAlive);
    if (this.#response.destroyed) return;
    this.#begin();
    const failure = error && { error: { code: error.code, message: error.message } };
    this.#response.end(envelope(endFlag, failure ?? {}));
  }

  #begin(): void {
    if (this.#response.headersSent) return;
    this.#response.writeHead(200, { "content-type": streamType, "cache-control": "no-store" });
  }
}

function envelope(flags: number, message: Fields): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(headBytes);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}
