/** One server-sent event. */
export interface ServerSentEvent {
  /** The event's name; default `message`. */
  event: string;
  /** The lines of data, without a line end after the last. */
  data: string;
}

const pieceCharacters = 64 * 1024 * 1024;

/** Reads server-sent events (WHATWG): the fields `event` and `data`; comments and other fields are dropped. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerSentEvent> {
  let event = "";
  let data: string[] = [];
  for await (const line of readLines(body)) {
    if (line === "") {
      if (data.length > 0) yield { event: event === "" ? "message" : event, data: data.join("\n") };
      event = "";
      data = [];
      continue;
    }
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const name = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
}

async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  let rest = "";
  for await (const text of readText(body)) {
    rest += text;
    if (rest.length > pieceCharacters) throw new Error("a line of the event stream is too long");
    // A line that comes in many pieces is not searched again, and so not joined, with each of them.
    if (!text.includes("\n")) continue;
    let start = 0;
    for (let end = rest.indexOf("\n"); end !== -1; end = rest.indexOf("\n", start)) {
      yield rest.slice(start, rest[end - 1] === "\r" ? end - 1 : end);
      start = end + 1;
    }
    rest = rest.slice(start);
  }
}

/** Decodes UTF-8 while it arrives, in whole characters. Leaving the loop early closes the connection. */
export async function* readText(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let whole = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const text = decoder.decode(value, { stream: true });
      if (text !== "") yield text;
    }
    whole = true;
    const last = decoder.decode();
    if (last !== "") yield last;
  } finally {
    if (!whole) await reader.cancel().catch(() => undefined);
    reader.releaseLock();
  }
}
