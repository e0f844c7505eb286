/** Commands with streamed output; loaded on first use. */
import type { ErrorBody, ExecRequest, ExecStdinRequest } from "@cloche/protocol";
import { fromBase64, toBase64 } from "./base64.ts";
import { bodyOf, type DataPlane } from "./data-plane.ts";
import { ClocheApiError, ClocheConnectionError } from "./errors.ts";
import { readEvents } from "./event-stream.ts";
import {
  bodyOfExec,
  type ExecBytesEvent,
  type ExecBytesOptions,
  type ExecEvent,
  type ExecOptions,
} from "./exec.ts";
import type { FetchResponse } from "./fetch.ts";

/** Limit of one write to standard input; repeated here, because importing all limits would add a tenth to the SDK. */
const stdinPieceBytes = 1_048_576;

export async function* execStream(
  dataPlane: DataPlane,
  cmd: readonly string[],
  options: ExecOptions,
): AsyncGenerator<ExecEvent, void> {
  const response = await begin(dataPlane, bodyOfExec(cmd, options), options.signal);
  for await (const event of eventsOf(response, options.signal))
    yield event.type === "exit" ? event : { type: event.type, data: event.data };
}

export async function* execStreamBytes(
  dataPlane: DataPlane,
  cmd: readonly string[],
  options: ExecBytesOptions,
): AsyncGenerator<ExecBytesEvent, void> {
  const { stdin, ...rest } = options;
  const isStream = typeof stdin === "object" && !(stdin instanceof Uint8Array);
  const stream = isStream ? globalThis.crypto.randomUUID() : undefined;
  const body: ExecRequest = {
    ...bodyOfExec(cmd, rest),
    ...(typeof stdin === "string" && { stdin }),
    ...(stdin instanceof Uint8Array && inText(stdin)),
    ...(stream !== undefined && { stdin_stream: stream }),
    output_encoding: "base64",
  };
  const over = new AbortController();
  const signal = options.signal === undefined ? over.signal : AbortSignal.any([options.signal, over.signal]);
  const response = await begin(dataPlane, body, signal);
  const stopFeeding =
    stream === undefined
      ? undefined
      : feed(dataPlane, stream, stdin as AsyncIterable<Uint8Array>, (error) => over.abort(error));
  try {
    for await (const event of eventsOf(response, signal)) {
      if (event.type === "exit") yield event;
      // An agent from before knows of no encoding, and sends text.
      else
        yield {
          type: event.type,
          data: event.isBase64 ? fromBase64(event.data) : encoder.encode(event.data),
        };
    }
  } finally {
    stopFeeding?.();
  }
}

/** Text goes as text: every agent takes it. */
function inText(bytes: Uint8Array): Pick<ExecRequest, "stdin" | "stdin_base64"> {
  try {
    return { stdin: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes) };
  } catch {
    return { stdin_base64: toBase64(bytes) };
  }
}

/** Passes pieces on as they come, until the answer is called. `onFailure`: the source or a write failed while the command runs. */
function feed(
  dataPlane: DataPlane,
  stream: string,
  source: AsyncIterable<Uint8Array>,
  onFailure: (error: unknown) => void,
): () => void {
  const over = new AbortController();
  const pieces = source[Symbol.asyncIterator]();
  const write = (fields: Omit<ExecStdinRequest, "stream">): Promise<unknown> =>
    dataPlane.json("POST", "/v1/exec/stdin", { json: { stream, ...fields }, signal: over.signal });
  const run = async (): Promise<void> => {
    for (let next = await pieces.next(); next.done !== true; next = await pieces.next()) {
      for (let at = 0; at < next.value.length; at += stdinPieceBytes)
        await write({ data_base64: toBase64(next.value.subarray(at, at + stdinPieceBytes)) });
    }
    await write({ end: true });
  };
  run().catch((error: unknown) => {
    // 404: the command has ended, and its last event will follow.
    const isOver = error instanceof ClocheApiError && error.status === 404;
    if (!isOver && !over.signal.aborted) onFailure(error);
  });
  return () => {
    over.abort();
    void pieces.return?.()?.catch(() => undefined);
  };
}

const begin = (dataPlane: DataPlane, json: ExecRequest, signal: AbortSignal | undefined) =>
  dataPlane.request("POST", "/v1/exec", { json, headers: { accept: "text/event-stream" }, signal });

type WireEvent =
  | { type: "stdout" | "stderr"; data: string; isBase64: boolean }
  | Extract<ExecEvent, { type: "exit" }>;

async function* eventsOf(
  response: FetchResponse,
  signal: AbortSignal | undefined,
): AsyncGenerator<WireEvent, void> {
  try {
    for await (const { event, data } of readEvents(bodyOf(response))) {
      const body = JSON.parse(data) as Record<string, unknown>;
      if (event === "stdout" || event === "stderr")
        yield { type: event, data: String(body.data), isBase64: body.output_encoding === "base64" };
      else if (event === "exit") {
        yield { type: "exit", ...(body as Omit<Extract<ExecEvent, { type: "exit" }>, "type">) };
        return;
      } else if (event === "error") throw errorEvent(body as unknown as ErrorBody, response);
    }
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof ClocheApiError) throw error;
    throw lost(error);
  }
  throw lost(undefined);
}

const encoder = new TextEncoder();
const lost = (cause: unknown): ClocheConnectionError =>
  new ClocheConnectionError("the connection was lost before the command ended; it may run on", { cause });

function errorEvent(body: ErrorBody, response: FetchResponse): ClocheApiError {
  return new ClocheApiError(body.message, {
    code: body.code,
    status: response.status,
    requestId: response.headers.get("x-request-id") ?? undefined,
    details: body.details,
  });
}
