import type { Fetch, FetchResponse } from "./fetch.ts";
import { apiErrorOf, ClocheApiError, ClocheConnectionError } from "./errors.ts";

/** Options of every call. */
export interface CallOptions {
  /** Aborts the call, which rejects with the signal's reason. An aborted exec is killed in the sandbox. */
  signal?: AbortSignal | undefined;
}

export interface TransportRequest {
  method: string;
  url: string;
  headers: Record<string, string>;
  body?: BodyInit | undefined;
  signal?: AbortSignal | undefined;
  /** Repeating the request does no harm: it is retried if no answer came or the service is unavailable for now. */
  repeatable: boolean;
}

const retryWaitsMs = [100, 500];
const retryAfterMaxSeconds = 5;

/** Sends a request; answers a 2xx response, throws a typed error for any other. */
export async function send(fetch: Fetch, request: TransportRequest): Promise<FetchResponse> {
  const repeatable = request.repeatable && !isStream(request.body);
  for (let attempt = 0; ; attempt += 1) {
    const waitMs = repeatable ? retryWaitsMs[attempt] : undefined;
    try {
      return await sendOnce(fetch, request);
    } catch (error) {
      const pauseMs = waitMs === undefined ? undefined : pauseBeforeRetry(error, waitMs);
      if (pauseMs === undefined) throw error;
      await sleep(pauseMs, request.signal);
    }
  }
}

/** The pause before a repeat; undefined: the error is final. */
function pauseBeforeRetry(error: unknown, waitMs: number): number | undefined {
  if (error instanceof ClocheConnectionError)
    return error.code === "untrusted" ? undefined : waitMs * (0.5 + Math.random());
  if (
    error instanceof ClocheApiError &&
    error.code === "unavailable" &&
    error.retryAfterSeconds !== undefined
  ) {
    return error.retryAfterSeconds <= retryAfterMaxSeconds ? error.retryAfterSeconds * 1000 : undefined;
  }
  return undefined;
}

async function sendOnce(fetch: Fetch, request: TransportRequest): Promise<FetchResponse> {
  const { method, url, headers, body, signal } = request;
  const init: RequestInit & { duplex?: "half" } = { method, headers, redirect: "error", credentials: "omit" };
  if (body !== undefined) init.body = body;
  if (isStream(body)) init.duplex = "half";
  if (signal !== undefined) init.signal = signal;
  let response: FetchResponse;
  try {
    response = await fetch(url, init);
  } catch (error) {
    signal?.throwIfAborted();
    // Loaded only for an error.
    const { noAnswer } = await import("./no-answer.ts");
    throw noAnswer(error, new URL(url).host);
  }
  if (response.ok) return response;
  throw await apiErrorOf(response);
}

/** Tests for text and no body first, because naming ReadableStream makes Node load its streams. */
const isStream = (body: BodyInit | undefined): boolean =>
  typeof body === "object" && body instanceof ReadableStream;

/** Resolves after `ms`; rejects with the signal's reason when it aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason as Error);
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
