import fc from "fast-check";
import { expect, test } from "vitest";
import { textOf } from "./utf8.ts";

test("any part of a text is text, without the characters that the cut goes through", () => {
  fc.assert(
    fc.property(
      fc.string({ unit: "grapheme", minLength: 1, maxLength: 30 }),
      fc.nat(),
      fc.nat(),
      (text, a, b) => {
        fc.pre(!text.includes("\0"));
        const whole = Buffer.from(text);
        const [from, to] = [a % (whole.length + 1), b % (whole.length + 1)].sort((x, y) => x - y) as [
          number,
          number,
        ];
        const part = whole.subarray(from, to);
        const piece = textOf(part);
        expect(piece).toBeDefined();
        if (piece === undefined) return;
        expect(Buffer.from(piece.text)).toEqual(Buffer.from(part.subarray(piece.from, piece.to)));
        expect(piece.from).toBeLessThanOrEqual(3);
        expect(part.length - piece.to).toBeLessThanOrEqual(3);
      },
    ),
  );
});

test("read on where a piece ended, a text comes back whole", () => {
  const whole = Buffer.from("aé日🙂".repeat(50));
  let text = "";
  for (let at = 0; at < whole.length; ) {
    const piece = textOf(whole.subarray(at, at + 7));
    expect(piece?.from).toBe(0);
    text += piece?.text ?? "";
    at += piece?.to ?? 7;
  }
  expect(text).toBe(whole.toString("utf8"));
});

test.each([
  ["a byte that no character has", [0x61, 0xff, 0x62]],
  ["a NUL", [0x61, 0, 0x62]],
  ["a character cut through in the middle", [0x61, 0xe6, 0x97, 0x62, 0x62, 0x62, 0x62]],
])("%s is no text", (_what, bytes) => {
  expect(textOf(Uint8Array.from(bytes))).toBeUndefined();
});
