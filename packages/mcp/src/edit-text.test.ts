import { expect, it } from "vitest";
import { editText } from "./edit-text.ts";

it.each([
  ["LF stays LF", "a\nb\nc\n", "a\nb", "x\ny", "x\ny\nc\n", 1],
  ["LF matches CRLF, which is kept", "a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", "x\r\ny\r\nc\r\n", 1],
  ["a line of a CRLF file becomes two", "a\r\nb\r\n", "b", "x\ny", "a\r\nx\r\ny\r\n", 1],
  ["CRLF given literally", "a\r\nb\r\n", "a\r\n", "a\n", "a\nb\r\n", 1],
  ["CRLF given, LF in the file", "a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n", 1],
  ["both line ends in one file, LF", "a\nb\nc\r\nd\n", "a\nb", "x\ny", "x\ny\nc\r\nd\n", 1],
  ["both line ends in one file, CRLF", "a\nb\nc\r\nd\n", "c\nd", "x\ny", "a\nb\nx\r\ny\n", 1],
  ["a line where most end in LF", "a\nb\nc\r\nd\n", "d", "x\ny", "a\nb\nc\r\nx\ny\n", 1],
  ["from the end of one line to that of the next", "a\r\nb\r\nc", "\nb\n", "\n", "a\r\nc", 1],
  ["a carriage return within a line", "a\rb\r\nc\r\n", "a\rb\nc", "x", "x\r\n", 1],
  ["several places in one line", "aXbX\r\ncX\r\n", "X", "", "ab\r\nc\r\n", 3],
  ["nothing fits", "a\r\nb\r\n", "a\nc", "x", "a\r\nb\r\n", 0],
])("%s", (_name, text, from, to, wanted, places) => {
  expect(editText(text, from, to)).toEqual({ text: wanted, places });
});
