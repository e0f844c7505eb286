import { ClocheError } from "@cloche/protocol";
import { departure } from "../http/departure.ts";
import type { Exchange } from "../http/exchange.ts";
import { queryBoolean, queryInteger } from "../http/query.ts";
import type { OutputStream } from "../spawner/index.ts";
import { goesOut, type OutputTaker, readOutput, type ReadStream } from "./output-reader.ts";
import type { Process } from "./process.ts";

const keepAliveMs = 15_000;

/** `GET /v1/processes/{id}/output`: raw bytes of one stream, or with `Accept: text/event-stream` events of both. */
export async function sendOutput(process: Process, exchange: Exchange): Promise<undefined> {
  const follow = queryBoolean(exchange.query, "follow") ?? false;
  const wantsEvents = (exchange.request.headers.accept ?? "").toLowerCase().includes("text/event-stream");
  const over = departure(exchange);
  const release = process.admitReader();
  try {
    await (wantsEvents ? sendEvents : sendBytes)(process, exchange, follow, over);
  } finally {
    release();
  }
  return undefined;
}

/** An offset in a query; undefined if it is absent. */
export function queryOffset(exchange: Exchange, name: string): number | undefined {
  return queryInteger(exchange.query, name, 0, Number.MAX_SAFE_INTEGER);
}

function namedStream(exchange: Exchange): OutputStream | undefined {
  const name = exchange.query.get("stream");
  if (name === undefined) return undefined;
  if (name === "stdout" || name === "stderr") return name;
  throw new ClocheError("invalid_argument", "stream must be stdout or stderr");
}

async function sendBytes(
  process: Process,
  exchange: Exchange,
  follow: boolean,
  over: AbortSignal,
): Promise<void> {
  const { response } = exchange;
  const name = namedStream(exchange) ?? "stdout";
  const log = process.spec[name];
  const after = queryOffset(exchange, "after") ?? 0;
  const offset = Math.max(after, log.startOffset);
  const end = log.totalBytes;
  const headers: Record<string, string | number> = {
    "content-type": "application/octet-stream",
    "cache-control": "no-store",
    "x-output-start": offset,
    "x-output-end": Math.max(end, offset),
  };
  const stream: ReadStream = { name, log, offset };
  const isWhole = !follow || (process.hasEnded && log.ended);
  let left = Infinity;
  if (isWhole) {
    // Only the present output, not bytes that come while it is sent.
    const first = log.at(offset, 1);
    if (first.kind === "gap") headers["x-output-start"] = stream.offset = first.to;
    left = Math.max(0, end - stream.offset);
    headers["content-length"] = left;
  }
  response.writeHead(200, headers);
  if (left === 0) return void response.end();
  response.flushHeaders();
  const taker: OutputTaker = {
    data: (_stream, _offset, data) => {
      const part = data.length > left ? data.subarray(0, left) : data;
      left -= part.length;
      const more = left > 0;
      if (response.write(part)) return more;
      return goesOut(response).then((out) => (out ? more : cut(exchange)));
    },
    // Raw bytes cannot express a gap in the middle: the client asks again from its offset, and then learns of the gap.
    gap: () => cut(exchange),
  };
  await readOutput([stream], taker, over, follow);
  if (isWhole && left > 0) cut(exchange);
  else if (!response.destroyed) response.end();
}

/** Ends the connection in the middle of the answer, so that the client does not take it for complete. */
function cut({ response }: Exchange): false {
  response.destroy();
  return false;
}

async function sendEvents(
  process: Process,
  exchange: Exchange,
  follow: boolean,
  over: AbortSignal,
): Promise<void> {
  const { response } = exchange;
  const streams = eventStreams(process, exchange);
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.flushHeaders();
  const keepAlive = setInterval(() => response.write(": still running\n\n"), keepAliveMs);
  /** The offsets from which a reader can continue, as `Last-Event-ID`. */
  const position = (moved: OutputStream, to: number): string =>
    streams.map(({ name, offset }) => `${name}=${name === moved ? to : offset}`).join(",");
  const send = (event: string, body: unknown, id?: string): boolean | Promise<boolean> => {
    const text = `${id === undefined ? "" : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(body)}\n\n`;
    if (response.destroyed) return false;
    if (response.write(text)) return true;
    return goesOut(response).then((out) => out || cut(exchange));
  };
  try {
    const taker: OutputTaker = {
      data: (name, offset, data) =>
        send(name, { offset, data: data.toString("base64") }, position(name, offset + data.length)),
      gap: (name, from, to) => send("gap", { stream: name, from, to }, position(name, to)),
    };
    const read = await readOutput(streams, taker, over, follow);
    if (!read) return;
    if (process.hasEnded) await send("exit", process.info());
    response.end();
  } finally {
    clearInterval(keepAlive);
  }
}

/** The start offsets of a reader of events: `Last-Event-ID`, or `after` of the named stream, or `after_stdout` and `after_stderr`. */
function eventStreams(process: Process, exchange: Exchange): ReadStream[] {
  const only = namedStream(exchange);
  const after = queryOffset(exchange, "after");
  const last = String(exchange.request.headers["last-event-id"] ?? "");
  const names: OutputStream[] = only === undefined ? ["stdout", "stderr"] : [only];
  return names.map((name) => {
    const seen = new RegExp(`\\b${name}=([0-9]{1,15})\\b`).exec(last)?.[1];
    const own = queryOffset(exchange, `after_${name}`);
    const named = only !== undefined || name === "stdout" ? after : undefined;
    return { name, log: process.spec[name], offset: seen === undefined ? (own ?? named ?? 0) : Number(seen) };
  });
}
