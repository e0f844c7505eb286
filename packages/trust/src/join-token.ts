/**
 * Join tokens, which bring new parts into a cluster. A token is valid once, or any number of times if it is reusable,
 * for one role and a short time. It also has the SHA-256 of the authority, so that the newcomer knows whom to trust
 * before it has a certificate.
 *
 *   issued ──redeem──▶ used, or over: refused        reusable ──redeem──▶ reusable, until it is over
 */
import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { ClocheError } from "@cloche/protocol";
import { isRole, type Role } from "./identity.ts";
import { derivedKey } from "./seal.ts";

const prefix = "cloche-join";
/** The first word of a token that is valid more than once. */
const reusablePrefix = "cloche-join-reusable";

/** Marks a token as used, until `untilMs`. False: it was used before. Of two calls at once only one gets true. */
export type UseOnce = (id: string, untilMs: number) => Promise<boolean>;

export class JoinTokens {
  readonly #key: Buffer;
  readonly #ca: string;

  /** `secret`: the operator's. `ca`: the authority's certificate, PEM. */
  constructor(secret: Uint8Array, ca: string) {
    this.#key = derivedKey(secret, "join");
    this.#ca = fingerprint(ca);
  }

  /** `isReusable`: valid for any number of newcomers until it expires. */
  issue(role: Role, lifetimeMs: number, nowMs: number, isReusable = false): string {
    const id = randomBytes(12).toString("hex");
    const kind = isReusable ? reusablePrefix : prefix;
    const signedPart = [kind, role, String(nowMs + lifetimeMs), id, this.#ca].join(".");
    return `${signedPart}.${this.#mac(signedPart)}`;
  }

  /** Uses the token and returns its role. Throws `unauthenticated` for a token that is altered, expired or used. */
  async redeem(token: string, nowMs: number, useOnce: UseOnce): Promise<Role> {
    const { kind, role, id, untilMs } = this.#read(token, nowMs);
    if (kind !== reusablePrefix && !(await useOnce(id, untilMs))) throw refused();
    return role;
  }

  /** Returns the token's role without using the token, even if it was used. */
  roleOf(token: string, nowMs: number): Role {
    return this.#read(token, nowMs).role;
  }

  #read(token: string, nowMs: number): { kind: string; role: Role; id: string; untilMs: number } {
    const end = token.lastIndexOf(".");
    const signedPart = token.slice(0, Math.max(0, end));
    const given = Buffer.from(token.slice(end + 1));
    const right = Buffer.from(this.#mac(signedPart));
    if (given.length !== right.length || !timingSafeEqual(given, right)) throw refused();
    const [kind = "", role = "", until = "", id = ""] = signedPart.split(".");
    const untilMs = Number(until);
    if (!isRole(role) || !(nowMs < untilMs)) throw refused();
    return { kind, role, id, untilMs };
  }

  #mac(signedPart: string): string {
    return createHmac("sha256", this.#key).update(signedPart).digest("base64url");
  }
}

/**
 * Whether the certificate (PEM) is that of the token's authority; the newcomer checks this before it sends the token.
 */
export function isOfToken(token: string, ca: string): boolean {
  return token.split(".")[4] === fingerprint(ca);
}

const fingerprint = (pem: string): string =>
  createHash("sha256")
    .update(Buffer.from(pem.replaceAll(/-----[^-]+-----|\s/g, ""), "base64"))
    .digest("hex");

const refused = (): ClocheError =>
  new ClocheError("unauthenticated", "the join token is unknown, used or over; make another");
