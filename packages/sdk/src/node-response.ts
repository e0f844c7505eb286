import type { IncomingMessage } from "node:http";
import { GatheredBytes } from "@cloche/protocol";
import type { FetchResponse } from "./index.ts";

/** An answer of Node's HTTP for the SDK. A body that is read as a whole uses no web stream, which would cost a tenth of a brief call. */
export function responseOf(message: IncomingMessage): FetchResponse {
  const status = message.statusCode ?? 0;
  let body: ReadableStream<Uint8Array<ArrayBuffer>> | undefined;
  return {
    ok: status >= 200 && status < 300,
    status,
    statusText: message.statusMessage ?? "",
    headers: {
      get(name) {
        const value = message.headers[name.toLowerCase()];
        return Array.isArray(value) ? value.join(", ") : (value ?? null);
      },
    },
    get body() {
      return (body ??= streamOf(message));
    },
    json: async () => JSON.parse((await whole(message)).toString("utf8")) as unknown,
    text: async () => (await whole(message)).toString("utf8"),
    arrayBuffer: async () => {
      const bytes = await whole(message);
      return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
    },
  };
}

function whole(message: IncomingMessage): Promise<Buffer> {
  const gathered = new GatheredBytes();
  return new Promise((resolve, reject) => {
    message.on("data", (piece: Buffer) => gathered.push(piece));
    message.once("end", () => {
      const { buffer, byteOffset, length } = gathered.take();
      resolve(Buffer.from(buffer, byteOffset, length));
    });
    message.once("error", reject);
  });
}

/** The body as a stream, at the reader's pace. A cancel ends the connection, and so an exec that it shows. */
function streamOf(message: IncomingMessage): ReadableStream<Uint8Array<ArrayBuffer>> {
  return new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      start(controller) {
        message.pause();
        message.on("data", (piece: Buffer<ArrayBuffer>) => {
          controller.enqueue(new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength));
          message.pause();
        });
        message.once("end", () => controller.close());
        message.once("error", (error) => controller.error(error));
      },
      pull() {
        message.resume();
      },
      cancel() {
        message.destroy();
      },
    },
    { highWaterMark: 0 },
  );
}
