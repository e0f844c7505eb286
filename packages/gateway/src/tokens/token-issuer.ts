/**
 * Signs data plane tokens (spec/contract.md, Authentication; Token). The newest key signs, and all keys verify, so that
 * a rotation interrupts nobody. Signing runs on libuv's threads and does not block the event loop.
 */
import { sign } from "node:crypto";
import { promisify } from "node:util";
import {
  type PortTokenClaims,
  portAudience,
  type RandomBytes,
  type TokenClaims,
  type TokenHeader,
  type VerificationKey,
} from "@cloche/protocol";
import { type LoadedKeys, loadSigningKeys, type SigningKey } from "./signing-keys.ts";

export interface IssuedToken {
  jwt: string;
  expiresAtUnix: number;
}

export interface TokenIssuerOptions {
  issuer: string;
  keys: readonly SigningKey[];
  lifetimeSeconds: number;
  nowMs: () => number;
  randomBytes: RandomBytes;
}

const signAsync = promisify(sign);
const base64url = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");

export class TokenIssuer {
  readonly issuer: string;
  readonly #options: TokenIssuerOptions;
  #signing: LoadedKeys["signing"];
  #verification: VerificationKey[];

  constructor(options: TokenIssuerOptions) {
    this.#options = options;
    this.issuer = options.issuer;
    ({ signing: this.#signing, verification: this.#verification } = loadSigningKeys(options.keys));
  }

  /** Public keys that verify what this gateway signs, newest first. */
  get verificationKeys(): VerificationKey[] {
    return this.#verification;
  }

  /**
   * Changes the keys. `announce` first gets the public halves, and resolves when hosts and edges know them; only then
   * does the newest key sign. If it throws, and no key is taken away, the keys sign as before.
   */
  async rotate(
    keys: readonly SigningKey[],
    announce: (keys: VerificationKey[]) => Promise<void>,
  ): Promise<void> {
    const { signing, verification } = loadSigningKeys(keys);
    const before = this.#verification;
    const added = verification.filter(({ kid }) => !before.some((one) => one.kid === kid));
    const all = [...added, ...before];
    this.#verification = all;
    await announce(all);
    this.#signing = signing;
    this.#verification = verification;
    if (verification.length < all.length) await announce(verification);
  }

  /** A token for one sandbox, valid from now for the configured lifetime. */
  issue(teamId: string, sandboxId: string): Promise<IssuedToken> {
    return this.#sign(this.#claims(teamId, sandboxId));
  }

  /** A token for one port of one sandbox, which only the edge accepts, as the cookie of a port link. */
  issueForPort(teamId: string, sandboxId: string, port: number): Promise<IssuedToken> {
    const claims: PortTokenClaims = {
      ...this.#claims(teamId, sandboxId),
      aud: portAudience(sandboxId, port),
      port,
    };
    return this.#sign(claims);
  }

  #claims(teamId: string, sandboxId: string): TokenClaims {
    const now = Math.floor(this.#options.nowMs() / 1000);
    return {
      iss: this.issuer,
      sub: teamId,
      aud: sandboxId,
      sandbox_id: sandboxId,
      iat: now,
      nbf: now,
      exp: now + this.#options.lifetimeSeconds,
      jti: Buffer.from(this.#options.randomBytes(16)).toString("base64url"),
    };
  }

  async #sign(claims: TokenClaims): Promise<IssuedToken> {
    const { kid, key } = this.#signing;
    const header: TokenHeader = { alg: "RS256", kid, typ: "JWT" };
    const text = `${base64url(header)}.${base64url(claims)}`;
    const signature = await signAsync("RSA-SHA256", Buffer.from(text), key);
    return { jwt: `${text}.${signature.toString("base64url")}`, expiresAtUnix: claims.exp };
  }
}
