/**
 * What brings a new part in: good once, or as often as it is shown where it is marked reusable, for one role, for a short
 * time. It names the authority too, by its SHA-256, so that the newcomer knows whom it may trust before it has a certificate.
 *
 *   issued ──redeem──▶ used, or over: refused        reusable ──redeem──▶ reusable, until it is over
 */
import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { ClocheError } from "@cloche/protocol";
import { isRole, type Role } from "./identity.ts";
import { derivedKey } from "./seal.ts";

const prefix = "cloche-join";
/** The first word of a token says that it is good more than once. */
const reusablePrefix = "cloche-join-reusable";

/** False: it was used before. Of two at once only one gets true. Needs to remember until then. */
export type UseOnce = (id: string, untilMs: number) => Promise<boolean>;

export class JoinTokens {
  readonly #key: Buffer;
  readonly #ca: string;

  /** `secret`: of the operator. `ca`: the authority's certificate, PEM. */
  constructor(secret: Uint8Array, ca: string) {
    this.#key = derivedKey(secret, "join");
    this.#ca = fingerprint(ca);
  }

  /** `isReusable`: good for any number of newcomers until it is over. */
  issue(role: Role, lifetimeMs: number, nowMs: number, isReusable = false): string {
    const id = randomBytes(12).toString("hex");
    const kind = isReusable ? reusablePrefix : prefix;
    const said = [kind, role, String(nowMs + lifetimeMs), id, this.#ca].join(".");
    return `${said}.${this.#mac(said)}`;
  }

  /** The role that the token was issued for. Throws `unauthenticated` for one that is altered, over or used. */
  async redeem(token: string, nowMs: number, useOnce: UseOnce): Promise<Role> {
    const { kind, role, id, untilMs } = this.#read(token, nowMs);
    if (kind !== reusablePrefix && !(await useOnce(id, untilMs))) throw refused();
    return role;
  }

  /** The same, whether it was used or not, and without using it. */
  roleOf(token: string, nowMs: number): Role {
    return this.#read(token, nowMs).role;
  }

  #read(token: string, nowMs: number): { kind: string; role: Role; id: string; untilMs: number } {
    const end = token.lastIndexOf(".");
    const said = token.slice(0, Math.max(0, end));
    const given = Buffer.from(token.slice(end + 1));
    const right = Buffer.from(this.#mac(said));
    if (given.length !== right.length || !timingSafeEqual(given, right)) throw refused();
    const [kind = "", role = "", until = "", id = ""] = said.split(".");
    const untilMs = Number(until);
    if (!isRole(role) || !(nowMs < untilMs)) throw refused();
    return { kind, role, id, untilMs };
  }

  #mac(said: string): string {
    return createHmac("sha256", this.#key).update(said).digest("base64url");
  }
}

/** Whether the certificate (PEM) is of the authority that the token names: the newcomer asks before it sends the token. */
export function isOfToken(token: string, ca: string): boolean {
  return token.split(".")[4] === fingerprint(ca);
}

const fingerprint = (pem: string): string =>
  createHash("sha256")
    .update(Buffer.from(pem.replaceAll(/-----[^-]+-----|\s/g, ""), "base64"))
    .digest("hex");

const refused = (): ClocheError =>
  new ClocheError("unauthenticated", "the join token is unknown, used or over; make another");
