import fc from "fast-check";
import { expect, test } from "vitest";
import { AnswerFormatError, AnswerParser, type AnswerHead } from "./answer-parser.ts";

interface Read {
  heads: AnswerHead[];
  body: string;
  continues: number;
  done: boolean;
  rest: string;
  finished: boolean;
}

const limits = { headBytes: 4_096, headLines: 100 };

/** Feeds the text cut at the given places. */
function read(text: string, cuts: readonly number[] = [], bodyless = false): Read {
  const seen: Read = { heads: [], body: "", continues: 0, done: false, rest: "", finished: false };
  const parser = new AnswerParser(
    {
      onContinue: () => (seen.continues += 1),
      onHead: (head) => seen.heads.push(head),
      onBody: (chunk) => (seen.body += chunk.toString("latin1")),
      onDone: () => {
        expect(seen.done).toBe(false);
        seen.done = true;
      },
    },
    bodyless,
    limits,
  );
  const bytes = Buffer.from(text, "latin1");
  const places = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  for (let index = 0; index + 1 < places.length; index += 1) {
    const piece = bytes.subarray(places[index], places[index + 1]);
    if (piece.length > 0) seen.rest += parser.execute(piece)?.toString("latin1") ?? "";
  }
  seen.finished = parser.finish();
  return seen;
}

const chunked = (pieces: readonly string[]): string =>
  `${pieces.map((piece, index) => `${piece.length.toString(16)}${index % 2 ? ";x=y" : ""}\r\n${piece}\r\n`).join("")}0\r\nTrailer: t\r\n\r\n`;

test("every framing gives the same body however the bytes are cut", () => {
  const piece = fc.string({ unit: fc.constantFrom("a", "\r", "\n", "0", "H"), minLength: 1, maxLength: 30 });
  const cuts = fc.array(fc.nat(), { maxLength: 12 });
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 6 }), cuts, fc.boolean(), (pieces, places, asChunks) => {
      const body = pieces.join("");
      const framing = asChunks ? "Transfer-Encoding: chunked" : `Content-Length: ${body.length}`;
      const text = `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\n${framing}\r\n\r\n${asChunks ? chunked(pieces) : body}`;
      const seen = read(text, places);
      expect(seen).toMatchObject({ body, continues: 1, done: true, rest: "", finished: true });
      expect(seen.heads).toHaveLength(1);
      expect(seen.heads[0]).toMatchObject({ status: 200, reason: "OK", keepAlive: true });
    }),
  );
});

test("a head whose lines all end with a bare LF is read, and its connection carries no other answer", () => {
  const text =
    "HTTP/1.1 103 Early Hints\nLink: x\n\nHTTP/1.1 200 OK\nX-A: b\nTransfer-Encoding: chunked\n\n2\r\nok\r\n0\r\n\r\n";
  for (let cut = 1; cut < text.length; cut += 1) {
    const { heads, body, done } = read(text, [cut, cut + 1]);
    expect(heads).toMatchObject([{ status: 200, keepAlive: false }]);
    expect(heads[0]?.headers).toEqual(["X-A", "b", "Transfer-Encoding", "chunked"]);
    expect([body, done]).toEqual(["ok", true]);
  }
});

test("chunks of one byte are handed on together, and each counts as work", () => {
  const pieces: string[] = [];
  const none = () => undefined;
  const listener = { onContinue: none, onHead: none, onDone: none };
  const parser = new AnswerParser(
    { ...listener, onBody: (chunk) => pieces.push(chunk.toString()) },
    false,
    limits,
  );
  parser.execute(Buffer.from("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
  parser.execute(Buffer.from("1\r\na\r\n".repeat(5_000)));
  expect(pieces).toEqual(["a".repeat(5_000)]);
  expect(parser.pieces).toBeGreaterThan(5_000);
});

test("bytes behind an answer are handed back, not taken for body", () => {
  for (const framing of [
    "Content-Length: 2\r\n\r\nok",
    "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
  ]) {
    expect(read(`HTTP/1.1 200 OK\r\n${framing}HTTP/1.1 200 Evil\r\n\r\n`)).toMatchObject({
      body: "ok",
      rest: "HTTP/1.1 200 Evil\r\n\r\n",
    });
  }
});

test("HEAD, 204 and 304 have no body; an answer without framing lasts until the end", () => {
  expect(read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", [], true)).toMatchObject({
    done: true,
    body: "",
  });
  expect(read("HTTP/1.1 204 No Content\r\n\r\n")).toMatchObject({ done: true });
  expect(read("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n")).toMatchObject({
    done: true,
    body: "",
  });
  const seen = read("HTTP/1.1 200 OK\r\n\r\nall of it");
  expect(seen).toMatchObject({ done: true, body: "all of it", finished: true });
  expect(seen.heads[0]?.keepAlive).toBe(false);
});

test("an answer that is cut is not finished", () => {
  for (const text of [
    "",
    "HTTP/1.1 200",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
  ]) {
    expect(read(text)).toMatchObject({ finished: false, done: false });
  }
});

test("keep-alive is read from version and headers", () => {
  const head = (text: string): AnswerHead | undefined => read(`${text}Content-Length: 0\r\n\r\n`).heads[0];
  expect(head("HTTP/1.0 200 OK\r\n")?.keepAlive).toBe(false);
  expect(head("HTTP/1.1 200 OK\r\nConnection: foo, Close\r\n")?.keepAlive).toBe(false);
  expect(head("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=9\r\n")).toMatchObject({
    keepAlive: true,
    keepAliveSeconds: 5,
  });
});

test.each([
  ["a bad version", "HTTP/2 200 OK\r\n\r\n"],
  ["a bad status", "HTTP/1.1 2000 OK\r\n\r\n"],
  ["a folded header", "HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\r\n"],
  ["a space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n"],
  ["a sign in the length", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n"],
  ["a list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n"],
  ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"],
  ["both framings", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n"],
  ["chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"],
  ["a coding after chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n"],
  ["a chunk size that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n"],
  ["a chunk size without end", `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${"1".repeat(2_000)}`],
  ["a chunk longer than said", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"],
  ["a head of too many lines", `HTTP/1.1 200 OK\r\n${"A:\r\n".repeat(101)}\r\n`],
  ["a head with both line ends", "HTTP/1.1 200 OK\r\nA: b\nSet-Cookie: c\r\n\r\n"],
  ["a head of bare LFs with an empty line of CRLF", "HTTP/1.1 200 OK\nA: b\n\r\n"],
  ["1xx without end", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000)],
  ["a head without end", `HTTP/1.1 200 OK\r\nA: ${"x".repeat(5_000)}`],
  [
    "trailers without end",
    `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n${"A: b\r\n".repeat(2_000)}`,
  ],
])("%s is refused", (_what, text) => {
  expect(() => read(text)).toThrow(AnswerFormatError);
});
