/**
 * What one machine's agent takes in place of an owner's token (protocol's channel.ts): made of a token that the edge has verified,
 * by a key of that machine alone. Edge and host refuse it, so whoever inside gets hold of one has nothing.
 */
import { InnerTokens } from "@cloche/base";
import type { TokenClaims } from "@cloche/protocol";

const keptTokens = 256;
/** A guest's clock may be off by seconds; a tunnel is opened, and a link used, at once. */
const tunnelSeconds = 300;

export class InnerCredentials {
  readonly #tokens: InnerTokens;
  readonly #sandboxId: string;
  readonly #issuer: () => string;
  readonly #nowMs: () => number;
  /** By the owner's token; each once, until it is forgotten. */
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

  /** The Authorization of a request whose caller showed `token`, verified just now, with these claims. */
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

  /** The Authorization of a request that the edge has made out of a signed link. */
  forLink(): string {
    return this.#forNow({});
  }

  /** The Authorization of a tunnel to one port. */
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
