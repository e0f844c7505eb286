/**
 * A signed link to one file of one sandbox: `/v1/files/link?token=<claims>.<MAC>`. Whoever has it may do the one thing that it names, without
 * a token, until it expires. The key is the sandbox's own (Route.link_key), so a link is none of a fork's and none of the next sandbox's.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import { ClocheError, isCanonicalBase64url } from "@cloche/protocol";

export type FileOperation = "read" | "write";

export interface FileLink {
  /** Percent-encoded, as `path` of a query. */
  path: string;
  operation: FileOperation;
  /** With whose rights; undefined: root's. */
  user: string | undefined;
  /** Undefined: good for any number of uses. */
  onceId: string | undefined;
  expiresAtMs: number;
}

/** On the wire short names, since a path may be long already. */
interface Claims {
  p: string;
  o: "r" | "w";
  e: number;
  u?: string;
  n?: string;
}

const word = "cloche file link 1";
/** Of a path of 4,095 bytes, each percent-encoded, twice in base64. */
const tokenLengthMax = 20_000;

const macOf = (key: Uint8Array, sandboxId: string, claims: string): Buffer =>
  createHmac("sha256", key).update(`${word}\0${sandboxId}\0${claims}`).digest();

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

/** Throws `unauthenticated` for whatever this key has not signed, and for what has expired. */
export function verifyFileLink(key: Uint8Array, sandboxId: string, token: string, nowMs: number): FileLink {
  const [claims = "", mac = "", ...rest] = token.length > tokenLengthMax ? [] : token.split(".");
  // One spelling of each: a decoder is lax about the last character.
  if (rest.length > 0 || !isCanonicalBase64url(claims) || !isCanonicalBase64url(mac)) throw unknown();
  const [shown, right] = [Buffer.from(mac, "base64url"), macOf(key, sandboxId, claims)];
  if (shown.length !== right.length || !timingSafeEqual(shown, right)) throw unknown();
  const { p, o, e, u, n } = JSON.parse(Buffer.from(claims, "base64url").toString()) as Claims;
  if (e <= nowMs) throw new ClocheError("unauthenticated", "the link has expired; get a new one");
  return { path: p, operation: o === "r" ? "read" : "write", user: u, onceId: n, expiresAtMs: e };
}

const unknown = (): ClocheError =>
  new ClocheError("unauthenticated", "the link is none of this sandbox's, or was changed; get a new one");
