/**
 * The instance tag. Several services may run on one computer; everything that a host makes there (namespaces, nft
 * tables, cgroups) has the tag of its CLOCHE_HOME in its name, so that leftovers can be counted and removed per instance.
 */
import { createHash } from "node:crypto";
import { mkdirSync, realpathSync } from "node:fs";

const tagChars = 6;
const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

/** Six characters of `a-z0-9`, the same for every path that leads to `home`. Creates `home` (0700) when missing. */
export function instanceTag(home: string): string {
  mkdirSync(home, { recursive: true, mode: 0o700 });
  return tagOfPath(realpathSync(home));
}

export function tagOfPath(realPath: string): string {
  const digest = createHash("sha256").update(realPath).digest();
  return Array.from(digest.subarray(0, tagChars), (byte) => alphabet[byte % alphabet.length]).join("");
}
