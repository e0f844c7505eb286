/**
 * Reads one HTTP/1.1 answer from an agent's connection. The agent is not trusted: an answer with unclear framing is
 * refused, so that one answer can never run into the next. Trailers and 1xx other than 100 and 101 are dropped.
 *
 *   head ──100──▶ head        head ──101──▶ upgraded
 *    │ length        │ chunked            │ neither
 *    ▼               ▼                    ▼
 *   body          size ⇄ data          until EOF
 *    └──────────────┴──▶ done ◀───────────┘
 */
import type { RawHeaders } from "./headers.ts";

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

const headEnd = Buffer.from("\r\n\r\n");
const sizeLineBytes = 1_024;

export class AnswerParser {
  state: State = "head";
  readonly #listener: AnswerListener;
  readonly #headBytes: number;
  #bodyless: boolean;
  #pending: Buffer | undefined;
  #left = 0;
  #trailerBytes = 0;

  /** `bodyless`: the request was HEAD. */
  constructor(listener: AnswerListener, bodyless: boolean, headBytes: number) {
    this.#listener = listener;
    this.#bodyless = bodyless;
    this.#headBytes = headBytes;
  }

  /** Takes the next bytes; returns bytes after the end of the answer. Throws AnswerFormatError. */
  execute(chunk: Buffer): Buffer | undefined {
    let rest = this.#pending === undefined ? chunk : Buffer.concat([this.#pending, chunk]);
    this.#pending = undefined;
    while (rest.length > 0) {
      if (this.state === "done") return rest;
      const next = this.#step(rest);
      if (next === undefined) {
        this.#pending = rest;
        return undefined;
      }
      rest = next;
    }
    return undefined;
  }

  /** Call it when the connection ended. True: the answer is complete; false: the answer is cut. */
  finish(): boolean {
    if (this.state === "eof") this.#done();
    return this.state === "done";
  }

  /** One step; undefined: more bytes are needed. */
  #step(bytes: Buffer): Buffer | undefined {
    switch (this.state) {
      case "head":
        return this.#head(bytes);
      case "length": {
        const piece = bytes.length > this.#left ? bytes.subarray(0, this.#left) : bytes;
        this.#left -= piece.length;
        this.#listener.onBody(piece);
        if (this.#left === 0) this.#done();
        return bytes.subarray(piece.length);
      }
      case "eof":
        this.#listener.onBody(bytes);
        return bytes.subarray(bytes.length);
      case "size":
        return this.#size(bytes);
      case "data": {
        const piece = bytes.length > this.#left ? bytes.subarray(0, this.#left) : bytes;
        this.#left -= piece.length;
        if (this.#left === 0) this.state = "data_end";
        this.#listener.onBody(piece);
        return bytes.subarray(piece.length);
      }
      case "data_end":
        if (bytes.length < 2) return undefined;
        if (bytes[0] !== 13 || bytes[1] !== 10) throw new AnswerFormatError("chunk is not ended by CRLF");
        this.state = "size";
        return bytes.subarray(2);
      case "trailers":
        return this.#trailer(bytes);
      case "done":
        return bytes;
    }
  }

  #done(): void {
    this.state = "done";
    this.#listener.onDone();
  }

  #line(bytes: Buffer, maxBytes: number): string | undefined {
    const end = bytes.indexOf("\r\n");
    if (end === -1 ? bytes.length > maxBytes : end > maxBytes) throw new AnswerFormatError("line too long");
    return end === -1 ? undefined : bytes.toString("latin1", 0, end);
  }

  #size(bytes: Buffer): Buffer | undefined {
    const line = this.#line(bytes, sizeLineBytes);
    if (line === undefined) return undefined;
    const digits = /^([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?$/.exec(line)?.[1];
    if (digits === undefined) throw new AnswerFormatError("chunk size is no hexadecimal number");
    this.#left = Number.parseInt(digits, 16);
    this.state = this.#left === 0 ? "trailers" : "data";
    return bytes.subarray(line.length + 2);
  }

  #trailer(bytes: Buffer): Buffer | undefined {
    const line = this.#line(bytes, this.#headBytes);
    if (line === undefined) return undefined;
    this.#trailerBytes += line.length;
    if (this.#trailerBytes > this.#headBytes) throw new AnswerFormatError("trailers too long");
    if (line === "") this.#done();
    return bytes.subarray(line.length + 2);
  }

  #head(bytes: Buffer): Buffer | undefined {
    const end = bytes.indexOf(headEnd);
    if (end === -1 ? bytes.length > this.#headBytes : end > this.#headBytes) {
      throw new AnswerFormatError("head too long");
    }
    if (end === -1) return undefined;
    const rest = bytes.subarray(end + 4);
    const head = parseHead(bytes.toString("latin1", 0, end));
    if (head.status === 100) {
      this.#listener.onContinue();
      return rest;
    }
    if (head.status === 101) {
      // The bytes that follow belong to the upgraded protocol.
      this.state = "done";
      this.#listener.onHead(head);
      return rest;
    }
    if (head.status < 200) return rest;
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
    return rest;
  }
}

function parseHead(text: string): AnswerHead {
  const lines = text.split("\r\n");
  const match = /^HTTP\/1\.([01]) ([1-5]\d\d)(?: (.*))?$/.exec(lines[0] ?? "");
  if (match === null) throw new AnswerFormatError("not an HTTP/1.1 status line");
  const headers: RawHeaders = [];
  let keepAlive = match[1] === "1";
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
