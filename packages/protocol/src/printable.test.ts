import { expect, test } from "vitest";
import { printable, printableJson, printableLines } from "./printable.ts";

test("characters that a terminal obeys are escaped, others stay", () => {
  expect(printable("\x1b]0;owned\x07 a\nb\r\tc \x7f \x9b31m \u202eevil\u2066 \u2028")).toBe(
    "\\x1b]0;owned\\x07 a\\nb\\r\\tc \\x7f \\x9b31m \\u202eevil\\u2066 \\u2028",
  );
  expect(printable("Grüße, 日本 👩‍💻 C:\\dir")).toBe("Grüße, 日本 👩‍💻 C:\\dir");
});

test("in lines, line ends and tabs stay; a lone carriage return does not", () => {
  expect(printableLines("a\tb\r\nc\rd\n\x1b[2J")).toBe("a\tb\r\nc\\rd\n\\x1b[2J");
});

test("JSON keeps its value", () => {
  const value = { "k\x9b": "\x1b\x7f\x9b2J\u202e\u2028é" };
  const text = printableJson(JSON.stringify(value));
  expect(text).not.toMatch(/[\p{Cc}\u2028\u202e]/u);
  expect(JSON.parse(text)).toEqual(value);
});
