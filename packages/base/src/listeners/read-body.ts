import type { IncomingMessage } from "node:http";
import { ClocheError, GatheredBytes } from "@cloche/protocol";
import { asBuffer } from "../as-buffer.ts";
import { listenerBounds } from "./bounds.ts";
import type { Hold } from "./held-bytes.ts";

export interface BodyBounds {
  maxBytes: number;
  /** Counts what is read; the caller releases it. */
  hold?: Hold;
  /**
   * Called once before more than `listenerBounds.strangerBytes` are read; throws for a caller who is not known. May
   * answer what counts the whole body from then on.
   */
  checkCaller?: () => Promise<Hold | undefined>;
  /** Time for the whole body. */
  timeoutMs?: number;
}

/**
 * Reads a whole body. Throws `resource_exhausted` before reading if Content-Length is too large, else while reading;
 * `deadline_exceeded` when the body does not arrive in time; `canceled` when the client goes away.
 */
export async function readBody(request: IncomingMessage, bounds: BodyBounds): Promise<Buffer> {
  const { maxBytes, checkCaller, timeoutMs = listenerBounds.bodyMs } = bounds;
  let { hold } = bounds;
  const tooLarge = (): ClocheError =>
    new ClocheError("resource_exhausted", `request body is larger than ${maxBytes} bytes`, {
      resource: "body",
    });
  if (Number(request.headers["content-length"] ?? 0) > maxBytes) throw tooLarge();
  const gathered = new GatheredBytes();
  let isChecked = checkCaller === undefined;
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const late = (): void => reject(new ClocheError("deadline_exceeded", "the request did not arrive in time"));
  const gone = (cause?: unknown): void =>
    reject(new ClocheError("canceled", "the request ended before its body was complete", { cause }));
  const timer = setTimeout(late, timeoutMs);
  const onData = (chunk: Buffer): void => {
    try {
      if (gathered.length + chunk.length > maxBytes) throw tooLarge();
      hold?.add(chunk.length);
    } catch (error) {
      return reject(error as Error);
    }
    gathered.push(chunk);
    if (isChecked || gathered.length <= listenerBounds.strangerBytes) return;
    isChecked = true;
    request.pause();
    checkCaller?.()
      .then((ofCaller) => {
        ofCaller?.add(gathered.length);
        hold = ofCaller ?? hold;
        request.resume();
      })
      .catch(reject);
  };
  const onClose = (): void => (request.readableEnded ? resolve() : gone());
  if (request.destroyed && !request.readableEnded) gone();
  request.on("data", onData).once("end", resolve).once("error", gone).once("close", onClose);
  request.once("aborted", gone);
  try {
    await promise;
  } catch (error) {
    // The rest is not read; an error that comes later concerns nobody.
    request.pause();
    request.on("error", () => undefined);
    throw error;
  } finally {
    clearTimeout(timer);
    request
      .off("data", onData)
      .off("end", resolve)
      .off("error", gone)
      .off("close", onClose)
      .off("aborted", gone);
  }
  return asBuffer(gathered.take());
}
