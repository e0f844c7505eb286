// The instance tag: several services may run on one machine, and everything the host makes on it (namespaces,
// nft tables, cgroups) carries the tag of its CLOCHE_HOME, so that leftovers can be counted and cleaned per instance.
import { createHash } from "node:crypto";
import { mkdirSync, realpathSync } from "node:fs";

const TAG_CHARS = 6;
const ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789";

/** Six characters of `a-z0-9`, the same for every path that leads to `home`. Creates `home` (0700) when missing. */
export function instanceTag(home: string): string {
  mkdirSync(home, { recursive: true, mode: 0o700 });
  return tagOfPath(realpathSync(home));
}

export function tagOfPath(realPath: string): string {
  const digest = createHash("sha256").update(realPath).digest();
  return Array.from(digest.subarray(0, TAG_CHARS), (byte) => ALPHABET[byte % ALPHABET.length]).join("");
}
