/** E2B's metadata of files: `X-Metadata-<key>` of an upload, extended attributes `user.e2b.<key>` on the disk. */
import type { IncomingMessage } from "node:http";
import type { EntryInfo } from "@cloche/protocol";
import { E2bError } from "../e2b-error.ts";

const headerPrefix = "x-metadata-";
const attributePrefix = "user.e2b.";
const keyBytes = 246;

export type Metadata = Record<string, string>;

/** What an upload says, for each of its files; of a key that comes twice the first. */
export function metadataOf({ rawHeaders }: Pick<IncomingMessage, "rawHeaders">): Metadata {
  const metadata = new Map<string, string>();
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const [name = "", value = ""] = rawHeaders.slice(at, at + 2);
    if (!name.toLowerCase().startsWith(headerPrefix)) continue;
    const key = name.slice(headerPrefix.length).toLowerCase();
    if (metadata.has(key)) continue;
    if (key === "" || key.length > keyBytes)
      throw new E2bError("invalid_argument", `a metadata key must have 1 to ${keyBytes} bytes`);
    if (!/^[ -~]*$/.test(value))
      throw new E2bError("invalid_argument", `the metadata value of '${key}' must be printable US-ASCII`);
    metadata.set(key, value);
  }
  // Not by assignment: `__proto__` is a key as well.
  return Object.fromEntries(metadata);
}

/** The header of a write; none where there is no metadata: a file written anew has none. */
export function attributesHeader(metadata: Metadata): Record<string, string> {
  const all = Object.entries(metadata).map(([key, value]) => [
    attributePrefix + key,
    Buffer.from(value).toString("base64"),
  ]);
  return all.length === 0 ? {} : { "x-file-attributes": JSON.stringify(Object.fromEntries(all)) };
}

/** Undefined where there is none. */
export function metadataIn({ attributes = {} }: EntryInfo): Metadata | undefined {
  const found = Object.entries(attributes)
    .filter(([name]) => name.startsWith(attributePrefix))
    .map(([name, value]) => [
      name.slice(attributePrefix.length),
      Buffer.from(value, "base64").toString("utf8"),
    ]);
  return found.length === 0 ? undefined : (Object.fromEntries(found) as Metadata);
}
