import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";

/** An entry of a layer. Paths are bytes as latin1 text, because names need not be UTF-8. */
export interface TarEntry {
  kind: "file" | "directory" | "symlink" | "hardlink" | "special";
  path: string;
  /** Target of a link. */
  link: string;
  mode: number;
  uid: number;
  gid: number;
  sizeBytes: number;
  modifiedAtSeconds: number;
}

const blockBytes = 512;
const kinds: Record<string, TarEntry["kind"]> = {
  "0": "file",
  "\0": "file",
  "7": "file",
  "1": "hardlink",
  "2": "symlink",
  "3": "special",
  "4": "special",
  "5": "directory",
  "6": "special",
};

/** Reads a tar stream (ustar, pax, GNU long names) entry by entry; holds at most one chunk in memory. */
export class TarReader {
  readonly #source: AsyncIterator<Buffer>;
  #chunk: Buffer = Buffer.alloc(0);
  #left = 0;
  #padding = 0;

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** The next entry, or undefined at the end. Skips the unread content of the previous entry. */
  async next(): Promise<TarEntry | undefined> {
    await this.#skip(this.#left + this.#padding);
    this.#left = 0;
    this.#padding = 0;
    const changes: Partial<TarEntry> = {};
    for (;;) {
      const header = await this.#exactly(blockBytes, true);
      if (header === undefined || header.every((byte) => byte === 0)) {
        await this.#drain();
        return undefined;
      }
      if (!checksumRight(header)) throw new ImageError("a layer is no tar archive, or damaged");
      const type = String.fromCharCode(header[156] ?? 0);
      const sizeBytes = number(header, 124, 12);
      if (sizeBytes < 0) throw new ImageError("a layer has an entry whose size is negative");
      if (type === "x" || type === "g" || type === "L" || type === "K") {
        await this.#extended(type, sizeBytes, changes);
        continue;
      }
      if (type === "S") throw new ImageError("a layer has a sparse file, which is not supported");
      return this.#begin(header, type, { sizeBytes, ...changes });
    }
  }

  /** The content of the last entry from `next`. */
  async *data(): AsyncGenerator<Buffer> {
    while (this.#left > 0) {
      const chunk = await this.#some(this.#left);
      if (chunk === undefined) throw cutOff();
      this.#left -= chunk.length;
      yield chunk;
    }
  }

  #begin(header: Buffer, type: string, changes: Partial<TarEntry>): TarEntry {
    const entry: TarEntry = {
      kind: kinds[type] ?? "special",
      path: headerPath(header),
      link: text(header, 157, 100),
      mode: number(header, 100, 8) & 0o7777,
      uid: number(header, 108, 8),
      gid: number(header, 116, 8),
      sizeBytes: 0,
      modifiedAtSeconds: number(header, 136, 12),
      ...changes,
    };
    const stored = entry.sizeBytes;
    // Old archives mark a directory by a slash at the end of its name.
    if (entry.kind === "file" && entry.path.endsWith("/")) entry.kind = "directory";
    if (entry.kind === "file" || kinds[type] === undefined) {
      this.#left = stored;
      this.#padding = (blockBytes - (stored % blockBytes)) % blockBytes;
    }
    if (entry.kind !== "file") entry.sizeBytes = 0;
    return entry;
  }

  async #extended(type: string, sizeBytes: number, changes: Partial<TarEntry>): Promise<void> {
    if (sizeBytes > imageLimits.extendedHeaderBytes)
      throw new ImageError("a layer has an extended header that is too large");
    const body = (await this.#exactly(sizeBytes, false)) ?? Buffer.alloc(0);
    await this.#skip((blockBytes - (sizeBytes % blockBytes)) % blockBytes);
    if (type === "L") changes.path = untilNul(body);
    else if (type === "K") changes.link = untilNul(body);
    else if (type === "x") readPax(body, changes);
  }

  /** Exactly `length` bytes. With `mayEnd`: undefined if the stream ends before the first of them. */
  async #exactly(length: number, mayEnd: boolean): Promise<Buffer | undefined> {
    const parts: Buffer[] = [];
    let have = 0;
    while (have < length) {
      const part = await this.#some(length - have);
      if (part === undefined) {
        if (have === 0 && mayEnd) return undefined;
        throw cutOff();
      }
      parts.push(part);
      have += part.length;
    }
    return parts.length === 1 ? parts[0] : Buffer.concat(parts);
  }

  async #skip(length: number): Promise<void> {
    for (let left = length; left > 0; ) {
      const part = await this.#some(left);
      if (part === undefined) throw cutOff();
      left -= part.length;
    }
  }

  /** Reads to the end of the stream, so that the digest covers all bytes. */
  async #drain(): Promise<void> {
    while ((await this.#some(Number.MAX_SAFE_INTEGER)) !== undefined) continue;
  }

  async #some(length: number): Promise<Buffer | undefined> {
    while (this.#chunk.length === 0) {
      const { done, value } = await this.#source.next();
      if (done === true) return undefined;
      this.#chunk = value;
    }
    const part = this.#chunk.subarray(0, length);
    this.#chunk = this.#chunk.subarray(part.length);
    return part;
  }
}

const cutOff = (): ImageError => new ImageError("a layer ends in the middle of an entry");

function text(header: Buffer, offset: number, length: number): string {
  return untilNul(header.subarray(offset, offset + length));
}

function untilNul(bytes: Buffer): string {
  const end = bytes.indexOf(0);
  return bytes.toString("latin1", 0, end < 0 ? bytes.length : end);
}

function headerPath(header: Buffer): string {
  const name = text(header, 0, 100);
  const prefix = header.toString("latin1", 257, 263) === "ustar\0" ? text(header, 345, 155) : "";
  return prefix === "" ? name : `${prefix}/${name}`;
}

/** A numeric field: octal text, or (first bit set, a mark only) two's complement in base 256. */
function number(header: Buffer, offset: number, length: number): number {
  const first = header[offset] ?? 0;
  if ((first & 0x80) !== 0) {
    const isNegative = (first & 0x40) !== 0;
    const bytes = Buffer.from(header.subarray(offset, offset + length));
    if (!isNegative) bytes[0] = first & 0x7f;
    const value = Number(BigInt.asIntN(length * 8, BigInt(`0x${bytes.toString("hex")}`)));
    if (!Number.isSafeInteger(value)) throw new ImageError("a layer has a number that is too large");
    return value;
  }
  const digits = /^[ \0]*([0-7]*)/.exec(header.toString("latin1", offset, offset + length))?.[1] ?? "";
  return digits === "" ? 0 : Number.parseInt(digits, 8);
}

function checksumRight(header: Buffer): boolean {
  let sum = 0;
  for (let at = 0; at < blockBytes; at += 1) sum += at >= 148 && at < 156 ? 0x20 : (header[at] ?? 0);
  return sum === number(header, 148, 8);
}

/** Records `<length> <key>=<value>\n`. */
function readPax(body: Buffer, changes: Partial<TarEntry>): void {
  for (let at = 0; at < body.length; ) {
    const space = body.indexOf(0x20, at);
    const length = space < 0 ? Number.NaN : Number(body.toString("latin1", at, space));
    if (!Number.isInteger(length) || length <= space - at || at + length > body.length) {
      throw new ImageError("a layer has a malformed pax header");
    }
    const record = body.toString("latin1", space + 1, at + length - 1);
    const equals = record.indexOf("=");
    const [key, value] = [record.slice(0, equals), record.slice(equals + 1)];
    if (value === "") {
      // An empty value removes that of an earlier header (POSIX).
    } else if (key === "path") changes.path = value;
    else if (key === "linkpath") changes.link = value;
    else if (key === "size") changes.sizeBytes = paxNumber(value);
    else if (key === "uid") changes.uid = paxNumber(value);
    else if (key === "gid") changes.gid = paxNumber(value);
    else if (key === "mtime") changes.modifiedAtSeconds = paxTime(value);
    else if (key.startsWith("GNU.sparse."))
      throw new ImageError("a layer has a sparse file, which is not supported");
    at += length;
  }
}

function paxNumber(value: string): number {
  const parsed = /^[0-9]{1,16}$/.test(value) ? Number(value) : Number.NaN;
  if (!Number.isSafeInteger(parsed)) throw new ImageError("a layer has a malformed pax number");
  return parsed;
}

/** Seconds; may be negative and may have a fraction. */
function paxTime(value: string): number {
  if (!/^-?[0-9]{1,18}(\.[0-9]*)?$/.test(value)) throw new ImageError("a layer has a malformed pax time");
  return Number(value);
}
