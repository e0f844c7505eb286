import fc from "fast-check";
import { expect, test } from "vitest";
import { OutputWindow } from "./output-window.ts";

test("what fits comes back as it was, in any pieces", () => {
  fc.assert(
    fc.property(fc.array(fc.string({ maxLength: 20 }), { maxLength: 20 }), (pieces) => {
      const whole = pieces.join("");
      const window = new OutputWindow(Math.max(2, Buffer.byteLength(whole)));
      for (const piece of pieces) window.add(Buffer.from(piece));
      expect(window.read()).toEqual({ text: whole, bytes: Buffer.byteLength(whole), truncated: false });
    }),
  );
});

test("of more, both ends come back with how much is missing between them", () => {
  fc.assert(
    fc.property(
      fc.array(fc.string({ unit: fc.constantFrom("a", "b", "\n"), maxLength: 30 }), { maxLength: 60 }),
      fc.integer({ min: 2, max: 40 }),
      (pieces, limit) => {
        const whole = pieces.join("");
        const window = new OutputWindow(limit);
        for (const piece of pieces) window.add(Buffer.from(piece));
        const { text, bytes, truncated } = window.read();
        expect(bytes).toBe(whole.length);
        expect(truncated).toBe(whole.length > limit);
        if (!truncated) {
          expect(text).toBe(whole);
          return;
        }
        const half = Math.floor(limit / 2);
        const left = whole.length - limit;
        const note = `\n[… ${left} bytes in the middle are left out …]\n`;
        expect(text).toBe(whole.slice(0, half) + note + whole.slice(whole.length - (limit - half)));
      },
    ),
  );
});

test("an endless stream takes no more memory than its limit", () => {
  const window = new OutputWindow(1_000);
  const piece = Buffer.alloc(1_048_576, "x");
  for (let count = 0; count < 200; count += 1) window.add(piece);
  expect(window.read().text.length).toBeLessThan(1_100);
  expect(window.read().bytes).toBe(200 * 1_048_576);
});
