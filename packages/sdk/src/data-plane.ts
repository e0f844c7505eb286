import { ClocheApiError, ClocheSdkError } from "./errors.ts";
import type { TokenSource } from "./token-source.ts";
import type { Fetch, FetchResponse } from "./fetch.ts";
import { send, type CallOptions } from "./transport.ts";
import { type OpenWebSocket, platformWebSocket, type WebSocketLike } from "./web-socket.ts";

export interface DataPlaneRequest extends CallOptions {
  query?: Record<string, string | number | boolean | undefined>;
  headers?: Record<string, string>;
  /** Sent as JSON; fields that are undefined are left out. */
  json?: unknown;
  body?: BodyInit;
  /** Default: every method but POST. */
  repeatable?: boolean;
}

/**
 * Requests to one sandbox's domain: token, one refresh and repeat on 401, typed errors (spec/contract.md, Authentication;
 * spec/contract.md, Both surfaces).
 */
export class DataPlane {
  readonly #fetch: Fetch;
  readonly #tokens: TokenSource;
  readonly #domain: (options: CallOptions) => Promise<string>;
  readonly #webSocket: OpenWebSocket;

  /** `domain` answers the sandbox's domain, with its port where it is not 443. */
  constructor(
    fetch: Fetch,
    tokens: TokenSource,
    domain: (options: CallOptions) => Promise<string>,
    webSocket: OpenWebSocket = platformWebSocket,
  ) {
    this.#fetch = fetch;
    this.#tokens = tokens;
    this.#domain = domain;
    this.#webSocket = webSocket;
  }

  /** Sends a request and answers the 2xx response, its body unread. */
  async request(method: string, path: string, request: DataPlaneRequest = {}): Promise<FetchResponse> {
    const { signal } = request;
    const url = `https://${await this.#domain({ signal })}${path}${queryString(request.query)}`;
    const headers: Record<string, string> = { ...request.headers };
    let body = request.body;
    if (request.json !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(request.json);
    }
    const repeatable = request.repeatable ?? method !== "POST";
    const attempt = (token: string): Promise<FetchResponse> =>
      send(this.#fetch, {
        method,
        url,
        headers: { ...headers, authorization: `Bearer ${token}` },
        body,
        signal,
        repeatable,
      });
    const token = await this.#tokens.get({ signal });
    try {
      return await attempt(token);
    } catch (error) {
      const refused = error instanceof ClocheApiError && error.status === 401;
      if (!refused || body instanceof ReadableStream) throw error;
      const fresh = await this.#tokens.replace(token, { signal });
      if (fresh === token) throw error;
      return attempt(fresh);
    }
  }

  /** A WebSocket to one of the sandbox's routes, with the token among its subprotocols: browsers can set no other header. */
  async socket(
    path: string,
    protocols: readonly string[],
    request: Pick<DataPlaneRequest, "query" | "signal"> = {},
  ): Promise<WebSocketLike> {
    const { signal } = request;
    const url = `wss://${await this.#domain({ signal })}${path}${queryString(request.query)}`;
    const token = await this.#tokens.get({ signal });
    return this.#webSocket(url, [...protocols, `cloche.token.${token}`]);
  }

  async json<Answer>(method: string, path: string, request: DataPlaneRequest = {}): Promise<Answer> {
    const response = await this.request(method, path, request);
    try {
      return (await response.json()) as Answer;
    } catch (error) {
      request.signal?.throwIfAborted();
      throw new ClocheSdkError(`the answer of ${method} ${path} is no JSON`, { cause: error });
    }
  }
}

function queryString(query: DataPlaneRequest["query"]): string {
  const present = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  if (present.length === 0) return "";
  return `?${new URLSearchParams(present.map(([name, value]) => [name, String(value)]))}`;
}

/** The body as a stream, also where an answer has none. */
export const bodyOf = (response: FetchResponse): ReadableStream<Uint8Array> =>
  response.body ?? new Blob([]).stream();
