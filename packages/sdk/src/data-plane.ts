import { ClocheApiError, ClocheSdkError } from "./errors.ts";
import type { TokenSource } from "./token-source.ts";
import type { Fetch, FetchResponse } from "./fetch.ts";
import { send, type CallOptions } from "./transport.ts";
import { type OpenWebSocket, platformWebSocket, type WebSocketLike } from "./web-socket.ts";

/** Options of a request to a sandbox. */
export interface DataPlaneRequest extends CallOptions {
  /** Fields that are undefined are left out. */
  query?: Record<string, string | number | boolean | undefined>;
  /** Further headers, besides the token and, with `json`, the content type. */
  headers?: Record<string, string>;
  /** Sent as JSON; fields that are undefined are left out. */
  json?: unknown;
  /** The raw body. A stream can be sent only once, so such a request is not repeated. */
  body?: BodyInit;
  /** Whether the request may be repeated. Default: true for all methods except POST. */
  repeatable?: boolean;
}

/** A larger difference is the fault of a clock: sending a token takes less time. */
const noticeableSeconds = 30;

/** Requests to one sandbox with its token, one refresh and repeat after a 401, and typed errors. For routes without an SDK method. */
export class DataPlane {
  readonly #fetch: Fetch;
  readonly #tokens: TokenSource;
  readonly #address: (options: CallOptions) => Promise<string>;
  readonly #webSocket: OpenWebSocket;

  /** `address` answers the part of the sandbox's URLs before `/v1/…`; it is called once there is a token. */
  constructor(
    fetch: Fetch,
    tokens: TokenSource,
    address: (options: CallOptions) => Promise<string>,
    webSocket: OpenWebSocket = platformWebSocket,
  ) {
    this.#fetch = fetch;
    this.#tokens = tokens;
    this.#address = address;
    this.#webSocket = webSocket;
  }

  /** Sends a request and answers the 2xx response with its unread body. */
  async request(method: string, path: string, request: DataPlaneRequest = {}): Promise<FetchResponse> {
    const { signal } = request;
    const headers: Record<string, string> = { ...request.headers };
    let body = request.body;
    if (request.json !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(request.json);
    }
    const repeatable = request.repeatable ?? method !== "POST";
    const token = await this.#tokens.get({ signal });
    const url = `${await this.#address({ signal })}${path}${queryString(request.query)}`;
    const attempt = (jwt: string): Promise<FetchResponse> =>
      send(this.#fetch, {
        method,
        url,
        headers: { ...headers, authorization: `Bearer ${jwt}` },
        body,
        signal,
        repeatable,
      });
    try {
      return await attempt(token);
    } catch (error) {
      const refused = error instanceof ClocheApiError && error.status === 401;
      if (!refused || body instanceof ReadableStream) throw error;
      const fresh = await this.#tokens.replace(token, { signal });
      if (fresh === token) throw error;
      return attempt(fresh).catch((again: unknown) => Promise.reject(this.#withClock(again)));
    }
  }

  /** If a new token was refused, adds to the error that the clock of one machine is probably wrong. */
  #withClock(error: unknown): unknown {
    const ahead = this.#tokens.clockAheadSeconds;
    const isRefused = error instanceof ClocheApiError && error.status === 401;
    if (!isRefused || Math.abs(ahead) < noticeableSeconds) return error;
    const side = ahead > 0 ? "ahead of" : "behind";
    const remedy = `this machine's clock is ${Math.abs(ahead).toFixed(0)} s ${side} the service's; set it`;
    return new ClocheApiError(`${error.message}; ${remedy}`, error);
  }

  /** A WebSocket to one of the sandbox's routes, with the token among its subprotocols: browsers can set no other header. */
  async socket(
    path: string,
    protocols: readonly string[],
    request: Pick<DataPlaneRequest, "query" | "signal"> = {},
  ): Promise<WebSocketLike> {
    const { signal } = request;
    const token = await this.#tokens.get({ signal });
    const url = `${await this.#address({ signal })}${path}${queryString(request.query)}`;
    return this.#webSocket(url.replace(/^http/, "ws"), [...protocols, `cloche.token.${token}`]);
  }

  /** As `request`, and parses the answer as JSON. `invalid_answer` if it is not JSON. */
  async json<Answer>(method: string, path: string, request: DataPlaneRequest = {}): Promise<Answer> {
    const response = await this.request(method, path, request);
    try {
      return (await response.json()) as Answer;
    } catch (error) {
      request.signal?.throwIfAborted();
      throw new ClocheSdkError(`the answer of ${method} ${path} is no JSON`, {
        cause: error,
        code: "invalid_answer",
      });
    }
  }
}

function queryString(query: DataPlaneRequest["query"]): string {
  const present = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  if (present.length === 0) return "";
  return `?${new URLSearchParams(present.map(([name, value]) => [name, String(value)]))}`;
}

/** The body as a stream; empty if the answer has none. */
export const bodyOf = (response: FetchResponse): ReadableStream<Uint8Array> =>
  response.body ?? new Blob([]).stream();
