import type { IncomingMessage } from "node:http";
import { ClocheError, GatheredBytes, limits } from "@cloche/protocol";
import type { JsonObject } from "./fields.ts";

const utf8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Reads a whole body. Throws 413 for more than `maxBytes` (before reading if Content-Length says so), 408 if no byte comes for 30 s,
 * `canceled` if the client goes away before the end.
 */
export async function readBody(request: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const pieces = await readBodyPieces(request, maxBytes);
  return pieces.length === 1 && pieces[0] ? pieces[0] : Buffer.concat(pieces);
}

/** As readBody, without joining the pieces: in gVisor a copy of a large body costs milliseconds, because each new page is a fault. */
export function readBodyPieces(request: IncomingMessage, maxBytes: number): Promise<Buffer[]> {
  const tooLarge = (): ClocheError =>
    new ClocheError("resource_exhausted", `the request body is larger than ${maxBytes} bytes`, {
      resource: "body",
    });
  if (Number(request.headers["content-length"] ?? 0) > maxBytes) return Promise.reject(tooLarge());
  const { promise, resolve, reject } = Promise.withResolvers<Buffer[]>();
  const gathered = new GatheredBytes();
  const stall = setTimeout(() => {
    finish();
    reject(new ClocheError("deadline_exceeded", "the request body stalled; send it without long pauses", {}));
  }, limits.headersTimeoutMs);
  const finish = (): void => {
    clearTimeout(stall);
    request.off("data", onData).off("end", onEnd).off("error", onGone).off("close", onGone);
  };
  const onData = (chunk: Buffer): void => {
    stall.refresh();
    if (gathered.length + chunk.length > maxBytes) {
      finish();
      reject(tooLarge());
    } else gathered.push(chunk);
  };
  const onEnd = (): void => {
    finish();
    const pieces = gathered.takePieces();
    resolve(pieces.map(({ buffer, byteOffset, length }) => Buffer.from(buffer, byteOffset, length)));
  };
  const onGone = (): void => {
    finish();
    reject(new ClocheError("canceled", "the client went away before its body was complete"));
  };
  request.on("data", onData).on("end", onEnd).on("error", onGone).on("close", onGone);
  return promise;
}

/** Text of a JSON body; invalid UTF-8 is refused (400). */
export function decodeUtf8(body: Buffer): string {
  try {
    return utf8.decode(body);
  } catch {
    throw new ClocheError("invalid_argument", "the request body is not valid UTF-8");
  }
}

/** The JSON object in a body, regardless of its content type. An empty body is `{}`: a POST without required fields needs no body. */
export function parseJsonObject(text: string): JsonObject {
  if (text.trim() === "") return {};
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new ClocheError("invalid_argument", "the request body is not valid JSON", { cause: error });
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new ClocheError("invalid_argument", "the request body must be a JSON object");
  }
  return parsed as JsonObject;
}

/**
 * Reads and discards the rest of a body, so that a client that is still sending gets the answer instead of a reset. A client that does
 * not stop sending is cut off.
 */
export function discardRest(request: IncomingMessage): void {
  if (request.complete || request.destroyed) return;
  let leftBytes = 64 * 1024 * 1024;
  const cut = setTimeout(() => request.socket.destroy(), 10_000);
  request.on("data", (chunk: Buffer) => {
    leftBytes -= chunk.length;
    if (leftBytes < 0) request.socket.destroy();
  });
  request.on("close", () => clearTimeout(cut));
  request.on("error", () => undefined);
  // A reader that gave up still has its listener, which would keep the stream paused.
  request.removeAllListeners("readable");
  request.resume();
}
