import type { CallOptions } from "./transport.ts";

/** A data plane token and its expiry, the answer of IssueDataPlaneToken. */
export interface DataPlaneToken {
  /** RS256 token of this one sandbox. */
  jwt: string;
  /** Unix seconds, by the service's clock. */
  expires_at_unix: number;
  /** The one address of all sandboxes: `<data_plane_url>/sandboxes/<id>/v1/…`. Absent in answers of older services. */
  data_plane_url?: string;
}
/** Answers a token for one sandbox: on a backend by IssueDataPlaneToken, in a browser by asking the backend. */
export type IssueToken = (options: CallOptions) => Promise<DataPlaneToken>;

const refreshMarginSeconds = 30;

/**
 * Holds the token of one sandbox and renews it 30 seconds before it expires; callers share one renewal. If a renewal fails, a token that is
 * still valid is used further. The lifetime of a token is counted from its receipt, so a wrong clock on this machine does no harm.
 */
export class TokenSource {
  readonly #issue: IssueToken;
  readonly #nowMs: () => number;
  #token: DataPlaneToken | undefined;
  #goodUntilMs = 0;
  #clockAhead = 0;
  #renewal: Promise<DataPlaneToken> | undefined;

  constructor(issue: IssueToken, token: DataPlaneToken | undefined, nowMs: () => number = Date.now) {
    this.#issue = issue;
    this.#nowMs = nowMs;
    if (token !== undefined) this.#take(token);
  }

  /** The last token, valid or not. */
  get latest(): DataPlaneToken | undefined {
    return this.#token;
  }

  /** A valid token. */
  async get(options: CallOptions): Promise<string> {
    const token = this.#token;
    if (token !== undefined && this.#secondsLeft() > refreshMarginSeconds) return token.jwt;
    try {
      return (await this.#renew(options)).jwt;
    } catch (error) {
      options.signal?.throwIfAborted();
      if (token !== undefined && this.#secondsLeft() > 0) return token.jwt;
      throw error;
    }
  }

  /** A token other than `refused`, for which the data plane answered 401. */
  async replace(refused: string, options: CallOptions): Promise<string> {
    if (this.#token !== undefined && this.#token.jwt !== refused) return this.#token.jwt;
    return (await this.#renew(options)).jwt;
  }

  /** Seconds by which this machine's clock is ahead of the service's, measured when the token came. */
  get clockAheadSeconds(): number {
    return this.#clockAhead;
  }

  #take(token: DataPlaneToken): DataPlaneToken {
    const nowSeconds = this.#nowMs() / 1_000;
    const issuedAt = issuedAtOf(token.jwt) ?? nowSeconds;
    this.#clockAhead = nowSeconds - issuedAt;
    this.#goodUntilMs = (token.expires_at_unix + this.#clockAhead) * 1_000;
    this.#token = token;
    return token;
  }

  #secondsLeft(): number {
    return (this.#goodUntilMs - this.#nowMs()) / 1_000;
  }

  /** Not aborted by one caller's signal, because others may wait for the same renewal. */
  async #renew(options: CallOptions): Promise<DataPlaneToken> {
    this.#renewal ??= this.#issue({})
      .then((token) => this.#take(token))
      .finally(() => (this.#renewal = undefined));
    const { signal } = options;
    if (signal === undefined) return this.#renewal;
    signal.throwIfAborted();
    const aborted = new Promise<never>((_resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
    });
    return Promise.race([this.#renewal, aborted]);
  }
}

/** The claim `iat`; undefined if this is not a Cloche token. */
function issuedAtOf(jwt: string): number | undefined {
  try {
    const payload = (jwt.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
    const { iat } = JSON.parse(atob(payload)) as { iat?: unknown };
    return typeof iat === "number" ? iat : undefined;
  } catch {
    return undefined;
  }
}
