/**
 * Reads one HTTP/1.1 answer from an agent's connection. The agent is not trusted: an answer with unclear framing is
 * refused, so that one answer can never run into the next. All lines of a head may end with a bare LF (RFC 9112, 2.2);
 * after such a head the connection carries no other answer. Trailers and 1xx other than 100 and 101 are dropped.
 *
 *   head ──100──▶ head        head ──101──▶ upgraded
 *    │ length        │ chunked            │ neither
 *    ▼               ▼                    ▼
 *   body          size ⇄ data          until EOF
 *    └──────────────┴──▶ done ◀───────────┘
 */
import type { RawHeaders } from "../exchange/headers.ts";
import { UnreadBytes } from "./unread-bytes.ts";

export class AnswerFormatError extends Error {}

export interface AnswerHead {
  status: number;
  reason: string;
  headers: RawHeaders;
  /** Known length of the body; undefined: chunked or until the connection ends. */
  length: number | undefined;
  /** Whether the connection may carry another request afterwards. */
  keepAlive: boolean;
  /** Seconds from `Keep-Alive: timeout=`; undefined: the agent does not say. */
  keepAliveSeconds: number | undefined;
}

export interface AnswerListener {
  onContinue(): void;
  onHead(head: AnswerHead): void;
  onBody(chunk: Buffer): void;
  onDone(): void;
}

type State = "head" | "length" | "eof" | "size" | "data" | "data_end" | "trailers" | "done";

/** Bounds of what precedes the body. */
export interface HeadLimits {
  /** Bytes of the head, of all 1xx heads before it, and of the trailers. */
  headBytes: number;
  /** Lines of one head. */
  headLines: number;
}

const cr = 13;
const lineFeed = 10;
const sizeLineBytes = 1_024;
const sizeDigits = 12;
/** Smaller pieces of a body are handed on together. */
const smallBytes = 1_024;

export class AnswerParser {
  state: State = "head";
  /** Steps so far, which are a measure of the work: heads, chunks, lines. */
  pieces = 0;
  readonly #listener: AnswerListener;
  readonly #limits: HeadLimits;
  readonly #unread = new UnreadBytes();
  #bodyless: boolean;
  #left = 0;
  #headBytesLeft: number;
  /** How far the head or line that is not complete has been searched for its end; the lines of the head so far. */
  #searched = 0;
  #lines = 0;
  #small: Buffer | undefined;
  #smallLength = 0;

  /** `bodyless`: the request was HEAD. */
  constructor(listener: AnswerListener, bodyless: boolean, limits: HeadLimits) {
    this.#listener = listener;
    this.#bodyless = bodyless;
    this.#limits = limits;
    this.#headBytesLeft = limits.headBytes;
  }

  /** Takes the next bytes; returns bytes after the end of the answer. Throws AnswerFormatError. */
  execute(chunk: Buffer): Buffer | undefined {
    const bytes = this.#unread.with(chunk);
    let at = 0;
    try {
      while (at < bytes.length) {
        if (this.state === "done") return bytes.subarray(at);
        const next = this.#step(bytes, at);
        if (next === undefined) {
          this.#unread.keep(bytes.subarray(at));
          return undefined;
        }
        this.pieces += 1;
        at = next;
      }
    } finally {
      this.#giveSmall();
    }
    return undefined;
  }

  /** Call it when the connection ended. True: the answer is complete; false: the answer is cut. */
  finish(): boolean {
    if (this.state === "eof") this.#done();
    return this.state === "done";
  }

  /** One step from `at`; returns where the next begins. Undefined: more bytes are needed. */
  #step(bytes: Buffer, at: number): number | undefined {
    switch (this.state) {
      case "head":
        return this.#head(bytes, at);
      case "length": {
        const end = this.#piece(bytes, at);
        if (this.#left === 0) this.#done();
        return end;
      }
      case "eof":
        this.#listener.onBody(bytes.subarray(at));
        return bytes.length;
      case "size":
        return this.#size(bytes, at);
      case "data": {
        const end = this.#piece(bytes, at);
        if (this.#left === 0) this.state = "data_end";
        return end;
      }
      case "data_end":
        if (bytes.length - at < 2) return undefined;
        if (bytes[at] !== cr || bytes[at + 1] !== lineFeed)
          throw new AnswerFormatError("chunk is not ended by CRLF");
        this.state = "size";
        return at + 2;
      case "trailers":
        return this.#trailer(bytes, at);
      case "done":
        return at;
    }
  }

  /** Hands on what is there of the body, or of a chunk; returns its end. */
  #piece(bytes: Buffer, at: number): number {
    const end = Math.min(bytes.length, at + this.#left);
    this.#left -= end - at;
    if (end - at < smallBytes && this.state === "data") this.#addSmall(bytes, at, end);
    else {
      this.#giveSmall();
      this.#listener.onBody(bytes.subarray(at, end));
    }
    return end;
  }

  #addSmall(bytes: Buffer, at: number, end: number): void {
    this.#small ??= Buffer.allocUnsafe(bytes.length - at);
    this.#smallLength += bytes.copy(this.#small, this.#smallLength, at, end);
  }

  #giveSmall(): void {
    const small = this.#small;
    if (small === undefined) return;
    const bytes = small.subarray(0, this.#smallLength);
    this.#small = undefined;
    this.#smallLength = 0;
    this.#listener.onBody(bytes);
  }

  #done(): void {
    this.#giveSmall();
    this.state = "done";
    this.#listener.onDone();
  }

  #line(bytes: Buffer, at: number, maxBytes: number): string | undefined {
    const end = bytes.indexOf("\r\n", at + Math.max(0, this.#searched - 1));
    this.#searched = end === -1 ? bytes.length - at : 0;
    if ((end === -1 ? bytes.length : end) - at > maxBytes) throw new AnswerFormatError("line too long");
    return end === -1 ? undefined : bytes.toString("latin1", at, end);
  }

  #size(bytes: Buffer, at: number): number | undefined {
    let end = at;
    let size = 0;
    for (let digit = hexadecimal(bytes[end]); digit !== -1; digit = hexadecimal(bytes[end])) {
      size = size * 16 + digit;
      end += 1;
    }
    if (end - at > sizeDigits || (end === at && end < bytes.length))
      throw new AnswerFormatError("chunk size is no hexadecimal number");
    if (bytes[end] === cr && bytes[end + 1] === lineFeed) end += 2;
    else {
      const line = this.#line(bytes, at, sizeLineBytes);
      if (line === undefined) return undefined;
      if (!/^[ \t]*(?:;.*)?$/.test(line.slice(end - at)))
        throw new AnswerFormatError("chunk size is no hexadecimal number");
      end = at + line.length + 2;
    }
    this.#searched = 0;
    this.#left = size;
    this.state = size === 0 ? "trailers" : "data";
    if (size === 0) this.#headBytesLeft = this.#limits.headBytes;
    return end;
  }

  #trailer(bytes: Buffer, at: number): number | undefined {
    const line = this.#line(bytes, at, this.#headBytesLeft);
    if (line === undefined) return undefined;
    this.#headBytesLeft -= line.length + 2;
    if (this.#headBytesLeft < 0) throw new AnswerFormatError("trailers too long");
    if (line === "") this.#done();
    return at + line.length + 2;
  }

  /** Where the head that begins at `at` ends; undefined: it is not complete. */
  #headEnd(bytes: Buffer, at: number): number | undefined {
    let lf = bytes.indexOf(lineFeed, at + this.#searched);
    while (lf !== -1) {
      const next = bytes[lf + 1];
      if (next === lineFeed) return lf + 2;
      if (next === cr && bytes[lf + 2] === lineFeed) return lf + 3;
      if (next === undefined || (next === cr && lf + 2 === bytes.length)) break;
      this.#lines += 1;
      if (this.#lines > this.#limits.headLines) throw new AnswerFormatError("head of too many lines");
      lf = bytes.indexOf(lineFeed, lf + 1);
    }
    this.#searched = (lf === -1 ? bytes.length : lf) - at;
    return undefined;
  }

  #head(bytes: Buffer, at: number): number | undefined {
    const end = this.#headEnd(bytes, at);
    if ((end ?? bytes.length) - at > this.#headBytesLeft) throw new AnswerFormatError("head too long");
    if (end === undefined) return undefined;
    this.#searched = 0;
    this.#lines = 0;
    this.#headBytesLeft -= end - at;
    const head = parseHead(bytes.toString("latin1", at, end));
    if (head.status === 100) {
      this.#listener.onContinue();
      return end;
    }
    if (head.status === 101) {
      // The bytes that follow belong to the upgraded protocol.
      this.state = "done";
      this.#listener.onHead(head);
      return end;
    }
    if (head.status < 200) return end;
    const { chunked, length } = framing(head.headers);
    const bodyless = this.#bodyless || head.status === 204 || head.status === 304;
    head.length = bodyless ? 0 : length;
    this.#left = head.length ?? 0;
    if (bodyless || length === 0) this.state = "done";
    else if (chunked) this.state = "size";
    else this.state = length === undefined ? "eof" : "length";
    if (this.state === "eof") head.keepAlive = false;
    this.#listener.onHead(head);
    // onHead may read the state, so onDone is called after it.
    if ((this.state as State) === "done") this.#listener.onDone();
    return end;
  }
}

/** The value of a hexadecimal digit; -1: it is none. */
function hexadecimal(byte: number | undefined): number {
  if (byte === undefined) return -1;
  if (byte >= 48 && byte <= 57) return byte - 48;
  const letter = byte | 32;
  return letter >= 97 && letter <= 102 ? letter - 87 : -1;
}

/** `text`: the whole head, with the empty line that ends it. */
function parseHead(text: string): AnswerHead {
  const hasBareLf = /(?:^|[^\r])\n/.test(text);
  if (hasBareLf && text.includes("\r"))
    throw new AnswerFormatError("lines of a head end with both CRLF and LF");
  const lines = text.split(hasBareLf ? "\n" : "\r\n").slice(0, -2);
  const match = /^HTTP\/1\.([01]) ([1-5]\d\d)(?: (.*))?$/.exec(lines[0] ?? "");
  if (match === null) throw new AnswerFormatError("not an HTTP/1.1 status line");
  const headers: RawHeaders = [];
  let keepAlive = match[1] === "1" && !hasBareLf;
  let keepAliveSeconds: number | undefined;
  for (let index = 1; index < lines.length; index += 1) {
    const line = lines[index] as string;
    const colon = line.indexOf(":");
    const name = line.slice(0, colon);
    if (colon < 1 || !/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)) {
      throw new AnswerFormatError("a header line without a valid name");
    }
    const value = line.slice(colon + 1).trim();
    headers.push(name, value);
    if (name.length === 10) {
      const lower = name.toLowerCase();
      if (lower === "connection" && /(?:^|,)\s*close\s*(?:,|$)/i.test(value)) keepAlive = false;
      if (lower === "keep-alive")
        keepAliveSeconds = Number(/timeout=(\d{1,6})/.exec(value)?.[1] ?? Number.NaN);
    }
  }
  if (Number.isNaN(keepAliveSeconds)) keepAliveSeconds = undefined;
  return {
    status: Number(match[2]),
    reason: match[3] ?? "",
    headers,
    length: undefined,
    keepAlive,
    keepAliveSeconds,
  };
}

function framing(headers: RawHeaders): { chunked: boolean; length: number | undefined } {
  let chunked = false;
  let length: number | undefined;
  for (let index = 0; index + 1 < headers.length; index += 2) {
    const name = headers[index] as string;
    const value = headers[index + 1] as string;
    if (name.length === 14 && name.toLowerCase() === "content-length") {
      if (!/^\d{1,15}$/.test(value)) throw new AnswerFormatError("Content-Length is no number");
      if (length !== undefined && length !== Number(value)) throw new AnswerFormatError("two lengths");
      length = Number(value);
    } else if (name.length === 17 && name.toLowerCase() === "transfer-encoding") {
      if (chunked || value.toLowerCase() !== "chunked")
        throw new AnswerFormatError("unknown transfer encoding");
      chunked = true;
    }
  }
  if (chunked && length !== undefined)
    throw new AnswerFormatError("both Content-Length and Transfer-Encoding");
  return { chunked, length };
}
