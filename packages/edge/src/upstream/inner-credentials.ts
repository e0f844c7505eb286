/**
 * Inner tokens, which one machine's agent accepts instead of an owner's token (protocol's channel.ts). Made from a
 * token that the edge has verified, with a key of that machine only. Edge and host refuse inner tokens, so one stolen
 * inside the sandbox is useless.
 */
import { InnerTokens } from "@cloche/base";
import type { TokenClaims } from "@cloche/protocol";

const keptTokens = 256;
/** Lifetime of tokens for tunnels and links, which are used at once; long enough for a guest's clock that is off. */
const tunnelSeconds = 300;

export class InnerCredentials {
  readonly #tokens: InnerTokens;
  readonly #sandboxId: string;
  readonly #issuer: () => string;
  readonly #nowMs: () => number;
  /** By the owner's token, the inner token made from it; the oldest is dropped when there are too many. */
  readonly #kept = new Map<string, string>();

  constructor(
    channelKey: Uint8Array,
    sandboxId: string,
    { issuer, wallMs }: { issuer: () => string; wallMs: () => number },
  ) {
    this.#tokens = new InnerTokens(channelKey);
    this.#sandboxId = sandboxId;
    this.#issuer = issuer;
    this.#nowMs = wallMs;
  }

  /** The Authorization for a request whose caller sent `token`, which was verified just now and has these claims. */
  forOwner(token: string, claims: TokenClaims): string {
    let made = this.#kept.get(token);
    if (made === undefined) {
      const { iss, sub, aud, sandbox_id, iat, nbf, exp, jti } = claims;
      made = `Bearer ${this.#tokens.sign({ iss, sub, aud, sandbox_id, iat, nbf, exp, jti })}`;
      if (this.#kept.size >= keptTokens) this.#kept.delete(this.#kept.keys().next().value as string);
      this.#kept.set(token, made);
    }
    return made;
  }

  /** The Authorization for a request with a signed link. */
  forLink(): string {
    return this.#forNow({});
  }

  /** The Authorization for a tunnel to one port. */
  forPort(port: number): string {
    return this.#forNow({ port });
  }

  #forNow(more: { port?: number }): string {
    const now = Math.floor(this.#nowMs() / 1000);
    const [nbf, exp] = [now - tunnelSeconds, now + tunnelSeconds];
    const id = this.#sandboxId;
    const claims = {
      iss: this.#issuer(),
      sub: "",
      aud: id,
      sandbox_id: id,
      iat: now,
      nbf,
      exp,
      jti: "",
      ...more,
    };
    return `Bearer ${this.#tokens.sign(claims)}`;
  }
}
