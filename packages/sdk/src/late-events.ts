import type { ServerSentEvent } from "./event-stream.ts";

/** Reads server-sent events, for routes that the SDK has no method for; comments and unknown fields are dropped. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerSentEvent> {
  // Loaded by those who read some.
  const stream = await import("./event-stream.ts");
  yield* stream.readEvents(body);
}
