import type { CallOptions } from "./transport.ts";

/** A data plane token and its expiry, as IssueDataPlaneToken answers them. */
export interface DataPlaneToken {
  jwt: string;
  expires_at_unix: number;
}
export type IssueToken = (options: CallOptions) => Promise<DataPlaneToken>;

const refreshMarginSeconds = 30;

/**
 * Holds the token of one sandbox and renews it 30 seconds before it expires (spec/contract.md, Authentication, 6); many callers
 * share one renewal. When a renewal fails, a token that is still good goes on being used.
 */
export class TokenSource {
  readonly #issue: IssueToken;
  readonly #nowMs: () => number;
  #token: DataPlaneToken | undefined;
  #renewal: Promise<DataPlaneToken> | undefined;

  constructor(issue: IssueToken, token: DataPlaneToken | undefined, nowMs: () => number = Date.now) {
    this.#issue = issue;
    this.#token = token;
    this.#nowMs = nowMs;
  }

  /** A token that is good for a while. */
  async get(options: CallOptions): Promise<string> {
    const token = this.#token;
    if (token !== undefined && this.#secondsLeft(token) > refreshMarginSeconds) return token.jwt;
    try {
      return (await this.#renew(options)).jwt;
    } catch (error) {
      options.signal?.throwIfAborted();
      if (token !== undefined && this.#secondsLeft(token) > 0) return token.jwt;
      throw error;
    }
  }

  /** A token other than `refused`, which the data plane answered with 401. */
  async replace(refused: string, options: CallOptions): Promise<string> {
    if (this.#token !== undefined && this.#token.jwt !== refused) return this.#token.jwt;
    return (await this.#renew(options)).jwt;
  }

  #secondsLeft(token: DataPlaneToken): number {
    return token.expires_at_unix - this.#nowMs() / 1000;
  }

  /** Not tied to one caller's signal, since others may wait for it too. */
  async #renew(options: CallOptions): Promise<DataPlaneToken> {
    this.#renewal ??= this.#issue({})
      .then((token) => (this.#token = token))
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
