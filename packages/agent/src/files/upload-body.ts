import { ClocheError, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";

/**
 * The body of a request as it comes, of any size, read no faster than it is taken. One that stands still for 30 s is 408, a client that
 * goes away before its end is `canceled`: what was read of it is then not the whole.
 */
export async function* bodyPieces(exchange: Exchange): AsyncGenerator<Buffer, void, undefined> {
  const body = exchange.openBody();
  const chunks = body[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  for (;;) {
    const step = await withinStall(chunks.next());
    if (step.done === true) break;
    yield step.value;
  }
  if (!body.complete) throw gone();
}

async function withinStall<T>(next: Promise<T>): Promise<T> {
  const stalled = Promise.withResolvers<never>();
  const timer = setTimeout(
    () =>
      stalled.reject(
        new ClocheError("deadline_exceeded", "the request body stalled; send it without long pauses"),
      ),
    limits.headersTimeoutMs,
  );
  try {
    return await Promise.race([next, stalled.promise]);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw gone(error);
  } finally {
    clearTimeout(timer);
    next.catch(() => undefined);
  }
}

const gone = (cause?: unknown): ClocheError =>
  new ClocheError("canceled", "the client went away before its body was complete", { cause });
