import type { ServerSentEvent } from "./event-stream.ts";

/** Reads server-sent events, for routes without an SDK method; comments and unknown fields are dropped. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerSentEvent> {
  // Loaded on first use.
  const stream = await import("./event-stream.ts");
  yield* stream.readEvents(body);
}
