/**
 * A signed link to one file of one sandbox: `/v1/files/link?token=<claims>.<MAC>`. It allows its holder one operation
 * on one path, without a token, until it expires. Each sandbox has its own key (Route.link_key), so a link is not valid
 * for forks or other sandboxes.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import { ClocheError, isCanonicalBase64url } from "@cloche/protocol";

export type FileOperation = "read" | "write";

export interface FileLink {
  /** Percent-encoded, as the query parameter `path`. */
  path: string;
  operation: FileOperation;
  /** The user whose rights are used; undefined: root. */
  user: string | undefined;
  /** Id of a one-time link; undefined: the link may be used any number of times. */
  onceId: string | undefined;
  expiresAtMs: number;
}

/** Short names on the wire, because a path may be long. */
interface Claims {
  p: string;
  o: "r" | "w";
  e: number;
  u?: string;
  n?: string;
}

const label = "cloche file link 1";
/** Room for a path of 4,095 bytes, each percent-encoded, in base64. */
const tokenLengthMax = 20_000;

const macOf = (key: Uint8Array, sandboxId: string, claims: string): Buffer =>
  createHmac("sha256", key).update(`${label}\0${sandboxId}\0${claims}`).digest();

export function signFileLink(key: Uint8Array, sandboxId: string, link: FileLink): string {
  const claims: Claims = {
    p: link.path,
    o: link.operation === "read" ? "r" : "w",
    e: link.expiresAtMs,
    ...(link.user !== undefined && { u: link.user }),
    ...(link.onceId !== undefined && { n: link.onceId }),
  };
  const part = Buffer.from(JSON.stringify(claims)).toString("base64url");
  return `${part}.${macOf(key, sandboxId, part).toString("base64url")}`;
}

/** Throws `unauthenticated` for a token that this key has not signed, and for an expired link. */
export function verifyFileLink(key: Uint8Array, sandboxId: string, token: string, nowMs: number): FileLink {
  const [claims = "", mac = "", ...rest] = token.length > tokenLengthMax ? [] : token.split(".");
  // Accept one spelling only: base64 decoders are lax about the last character.
  if (rest.length > 0 || !isCanonicalBase64url(claims) || !isCanonicalBase64url(mac)) throw unknown();
  const [shown, right] = [Buffer.from(mac, "base64url"), macOf(key, sandboxId, claims)];
  if (shown.length !== right.length || !timingSafeEqual(shown, right)) throw unknown();
  const { p, o, e, u, n } = JSON.parse(Buffer.from(claims, "base64url").toString()) as Claims;
  if (e <= nowMs) throw new ClocheError("unauthenticated", "the link has expired; get a new one");
  return { path: p, operation: o === "r" ? "read" : "write", user: u, onceId: n, expiresAtMs: e };
}

const unknown = (): ClocheError =>
  new ClocheError("unauthenticated", "the link is none of this sandbox's, or was changed; get a new one");
