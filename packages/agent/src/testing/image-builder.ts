import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import type { ImageSource } from "../oci-images/source.ts";
import { ImageError } from "../oci-images/image-error.ts";

/** An entry of a tar made by hand, which may be hostile. */
export interface MadeEntry {
  path: string;
  /** Tar's type character. Default "0", a file. */
  type?: string;
  link?: string;
  body?: string | Buffer;
  mode?: number;
  uid?: number;
  gid?: number;
  mtime?: number;
  /** Records of a pax header before it. */
  pax?: Record<string, string>;
  /** Written over its header's fields. */
  raw?: { at: number; bytes: Buffer };
}

export function makeTar(entries: readonly MadeEntry[]): Buffer {
  const parts: Buffer[] = [];
  for (const {
    path,
    type = "0",
    link = "",
    body = "",
    mode = 0o644,
    uid = 0,
    gid = 0,
    mtime = 0,
    pax = {},
    raw,
  } of entries) {
    const content = Buffer.from(body);
    const long = { ...(path.length > 100 && { path }), ...(link.length > 100 && { linkpath: link }) };
    const records = Object.entries({ ...long, ...pax }).map(paxRecord);
    if (records.length > 0)
      parts.push(...member({ path: "pax", type: "x" }, Buffer.from(records.join(""), "latin1")));
    parts.push(
      ...member(
        {
          path: path.slice(0, 100),
          type,
          link: link.slice(0, 100),
          mode,
          uid,
          gid,
          mtime,
          ...(raw && { raw }),
        },
        content,
      ),
    );
  }
  parts.push(Buffer.alloc(1_024));
  return Buffer.concat(parts);
}

function paxRecord([key, value]: [string, string]): string {
  const record = ` ${key}=${value}\n`;
  let length = record.length + 1;
  while (String(length).length + record.length !== length) length = String(length).length + record.length;
  return `${length}${record}`;
}

function member(entry: MadeEntry, content: Buffer): Buffer[] {
  const header = Buffer.alloc(512);
  header.write(entry.path, 0, "latin1");
  const octal = (value: number, at: number, length: number): void => {
    header.write(value.toString(8).padStart(length - 1, "0"), at, "latin1");
  };
  octal(entry.mode ?? 0o644, 100, 8);
  octal(entry.uid ?? 0, 108, 8);
  octal(entry.gid ?? 0, 116, 8);
  octal(content.length, 124, 12);
  octal(entry.mtime ?? 0, 136, 12);
  header.write(entry.type ?? "0", 156, "latin1");
  header.write(entry.link ?? "", 157, "latin1");
  header.write("ustar\0", 257, "latin1");
  header.write("00", 263, "latin1");
  entry.raw?.bytes.copy(header, entry.raw.at);
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return [header, content, Buffer.alloc((512 - (content.length % 512)) % 512)];
}

export const sha256 = (bytes: Buffer): string => `sha256:${createHash("sha256").update(bytes).digest("hex")}`;

/** An image in memory, as a source for the puller. `blobs` may be tampered with before it is read. */
export class MadeImage implements ImageSource {
  readonly blobs = new Map<string, Buffer>();
  rootBytes: Buffer;

  constructor(
    layers: readonly Buffer[],
    config: Record<string, unknown> = {},
    compress: (tar: Buffer) => Buffer = gzipSync,
  ) {
    const stored = layers.map((tar) => this.#put(compress(tar)));
    const configBlob = this.#put(
      Buffer.from(
        JSON.stringify({
          architecture: "amd64",
          os: "linux",
          config,
          rootfs: { type: "layers", diff_ids: layers.map(sha256) },
        }),
      ),
    );
    this.rootBytes = Buffer.from(JSON.stringify({ schemaVersion: 2, config: configBlob, layers: stored }));
    this.#put(this.rootBytes);
  }

  root = async (): Promise<Buffer> => this.rootBytes;

  async manifest({ digest }: { digest: string }): Promise<Buffer> {
    return this.#get(digest);
  }

  async *blob({ digest }: { digest: string }): AsyncGenerator<Buffer> {
    const bytes = this.#get(digest);
    for (let at = 0; at < bytes.length; at += 1_000) yield bytes.subarray(at, at + 1_000);
  }

  #get(digest: string): Buffer {
    const bytes = this.blobs.get(digest);
    if (bytes === undefined) throw new ImageError(`no blob ${digest}`);
    return bytes;
  }

  #put(bytes: Buffer): { mediaType: string; digest: string; size: number } {
    this.blobs.set(sha256(bytes), bytes);
    return { mediaType: "application/octet-stream", digest: sha256(bytes), size: bytes.length };
  }
}
