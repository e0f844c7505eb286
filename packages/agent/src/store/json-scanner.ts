import { isUtf8 } from "node:buffer";
import { ClocheError } from "@cloche/protocol";

/**
 * Checks JSON (RFC 8259) in bytes without building a tree. So values of the store keep their exact text (a 20-digit number stays exact),
 * and 64 MiB of `[[],[],…` cost 64 MiB instead of gigabytes.
 */
export class JsonScanner {
  readonly #bytes: Buffer;
  #at = 0;

  /** Throws `invalid_argument` if the bytes are not UTF-8. */
  constructor(bytes: Buffer) {
    if (!isUtf8(bytes)) throw new ClocheError("invalid_argument", "the request body is not valid UTF-8");
    this.#bytes = bytes;
  }

  /** The first byte of the next value, as text: `{`, `[`, `"`, `t`, `-`, `1`… */
  peek(): string {
    this.#space();
    return String.fromCharCode(this.#bytes[this.#at] ?? 0);
  }

  /** Reads an object and calls `onMember` for each member; `onMember` must read the member's value. */
  object(onMember: (name: string) => void): void {
    this.#expect(openBrace);
    this.#space();
    if (this.#take(closeBrace)) return;
    do {
      onMember(this.#name());
      this.#space();
    } while (this.#take(comma));
    this.#expect(closeBrace);
  }

  /** Reads an array and calls `onElement` for each element; `onElement` must read the element. */
  array(onElement: (index: number) => void): void {
    this.#expect(openBracket);
    this.#space();
    if (this.#take(closeBracket)) return;
    let index = 0;
    do {
      onElement(index);
      index += 1;
      this.#space();
    } while (this.#take(comma));
    this.#expect(closeBracket);
  }

  /** Reads the next value of any type and answers its text without insignificant white space. */
  value(): Buffer {
    this.#space();
    const start = this.#at;
    const spaced = this.#skip();
    const text = this.#bytes.subarray(start, this.#at);
    return spaced ? withoutSpace(text) : text;
  }

  /** Reads the next value and answers it if it is a scalar; arrays and objects become `undefined`. */
  scalar(): string | number | boolean | null | undefined {
    const first = this.peek();
    const text = this.value();
    if (first === "{" || first === "[") return undefined;
    return JSON.parse(text.toString("utf8")) as string | number | boolean | null;
  }

  /** Checks that only white space follows. */
  end(): void {
    this.#space();
    if (this.#at < this.#bytes.length) this.#fail();
  }

  /** Skips one value, iteratively; answers whether it contained white space. */
  #skip(): boolean {
    const closers: number[] = [];
    let spaced = false;
    for (;;) {
      const opener = this.#bytes[this.#at];
      if (opener === openBrace || opener === openBracket) {
        const closer = opener === openBrace ? closeBrace : closeBracket;
        this.#at += 1;
        spaced = this.#space() || spaced;
        if (!this.#take(closer)) {
          closers.push(closer);
          if (closer === closeBrace) spaced = this.#skipName() || spaced;
          continue;
        }
      } else this.#skipScalar(opener);
      for (;;) {
        const closer = closers.at(-1);
        if (closer === undefined) return spaced;
        spaced = this.#space() || spaced;
        if (this.#take(comma)) {
          spaced = this.#space() || spaced;
          if (closer === closeBrace) spaced = this.#skipName() || spaced;
          break;
        }
        this.#expect(closer);
        closers.pop();
      }
    }
  }

  #name(): string {
    this.#space();
    const start = this.#at;
    this.#skipString();
    const name = JSON.parse(this.#bytes.toString("utf8", start, this.#at)) as string;
    this.#space();
    this.#expect(colon);
    return name;
  }

  #skipName(): boolean {
    this.#skipString();
    let spaced = this.#space();
    this.#expect(colon);
    spaced = this.#space() || spaced;
    return spaced;
  }

  #skipScalar(first: number | undefined): void {
    if (first === quote) return this.#skipString();
    for (const literal of literals) {
      if (first === literal[0] && this.#bytes.subarray(this.#at, this.#at + literal.length).equals(literal)) {
        this.#at += literal.length;
        return;
      }
    }
    this.#skipNumber();
  }

  #skipString(): void {
    if (!this.#take(quote)) this.#fail();
    for (;;) {
      const byte = this.#bytes[this.#at];
      this.#at += 1;
      if (byte === quote) return;
      if (byte === undefined || byte < 0x20) this.#fail();
      if (byte === backslash) this.#skipEscape();
    }
  }

  #skipEscape(): void {
    const escape = String.fromCharCode(this.#bytes[this.#at] ?? 0);
    this.#at += 1;
    if (escape === "u") {
      if (!/^[0-9a-fA-F]{4}$/.test(this.#bytes.toString("latin1", this.#at, this.#at + 4))) this.#fail();
      this.#at += 4;
    } else if (!'"\\/bfnrt'.includes(escape)) this.#fail();
  }

  #skipNumber(): void {
    this.#take(0x2d); // -
    if (!this.#take(0x30)) this.#digits(); // no leading zeros
    if (this.#take(0x2e)) this.#digits(); // .
    if (this.#take(0x65) || this.#take(0x45)) {
      if (!this.#take(0x2b)) this.#take(0x2d);
      this.#digits();
    }
  }

  #digits(): void {
    const start = this.#at;
    for (;;) {
      const byte = this.#bytes[this.#at] ?? 0;
      if (byte < 0x30 || byte > 0x39) break;
      this.#at += 1;
    }
    if (this.#at === start) this.#fail();
  }

  #space(): boolean {
    const start = this.#at;
    while (isSpace(this.#bytes[this.#at])) this.#at += 1;
    return this.#at > start;
  }

  #take(byte: number): boolean {
    if (this.#bytes[this.#at] !== byte) return false;
    this.#at += 1;
    return true;
  }

  #expect(byte: number): void {
    this.#space();
    if (!this.#take(byte)) this.#fail();
  }

  #fail(): never {
    throw new ClocheError("invalid_argument", `the request body is not valid JSON (at byte ${this.#at})`);
  }
}

const quote = 0x22;
const comma = 0x2c;
const colon = 0x3a;
const openBracket = 0x5b;
const backslash = 0x5c;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;
const literals = ["true", "false", "null"].map((text) => Buffer.from(text));
const isSpace = (byte: number | undefined): boolean =>
  byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;

function withoutSpace(text: Buffer): Buffer {
  const out = Buffer.allocUnsafe(text.length);
  let length = 0;
  let inString = false;
  for (let at = 0; at < text.length; at += 1) {
    const byte = text[at] ?? 0;
    if (!inString && isSpace(byte)) continue;
    out[length] = byte;
    length += 1;
    if (byte === quote) inString = !inString;
    else if (inString && byte === backslash) {
      at += 1;
      out[length] = text[at] ?? 0;
      length += 1;
    }
  }
  return out.subarray(0, length);
}
