/**
 * A page of a bucket's list (ListObjectsV2), read in one pass. A general reader of XML took a minute for 600 KB that a hostile server
 * may answer. Keys and dates of ours need no XML escapes, so other keys may come out as they are written.
 */
import { ClocheError } from "@cloche/protocol";
import type { BlobEntry } from "./blob-store.ts";

export interface ListPage {
  objects: BlobEntry[];
  /** Token of the next page; undefined: the last. */
  next: string | undefined;
}

export function readPage(text: string): ListPage {
  if (!text.includes("<ListBucketResult"))
    throw new ClocheError("internal", "checkpoint storage answered no list of objects");
  const [head = "", ...parts] = text.split("<Contents>");
  const objects = parts.flatMap((part) => {
    const [key, size] = [between(part, "Key"), Number(between(part, "Size"))];
    if (key === undefined || !Number.isSafeInteger(size) || size < 0) return [];
    const modifiedAtMs = Date.parse(between(part, "LastModified") ?? "") || Infinity;
    return [{ key, bytes: size, modifiedAtMs }];
  });
  // The token stands before or after the objects.
  const around = [head, parts.at(-1) ?? ""];
  const next = around
    .map((part) => between(part, "NextContinuationToken"))
    .find((token) => token !== undefined);
  return { objects, next: next === undefined ? undefined : unescaped(next) };
}

/** The text between the first opening tag and the next closing one. */
function between(text: string, tag: string): string | undefined {
  const from = text.indexOf(`<${tag}>`);
  const to = from < 0 ? -1 : text.indexOf(`</${tag}>`, from);
  return to < 0 ? undefined : text.slice(from + tag.length + 2, to);
}

const escapes: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

const unescaped = (text: string): string =>
  text.replaceAll(
    /&(?:#x([0-9a-fA-F]{1,6})|#(\d{1,7})|(\w{2,4}));/g,
    (whole, hex?: string, decimal?: string, name = "") => {
      const code = hex === undefined ? Number(decimal) : Number.parseInt(hex, 16);
      if (Number.isInteger(code) && code <= 0x10_ffff) return String.fromCodePoint(code);
      return escapes[name] ?? whole;
    },
  );
