import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { answers, parseQuery, rcodeRefused, refusal, withId } from "./dns-message.ts";

function query(name: string, id = 0x1234): Buffer {
  const labels = name.split(".").flatMap((label) => [label.length, ...Buffer.from(label)]);
  return Buffer.from([id >> 8, id & 255, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, ...labels, 0, 0, 1, 0, 1]);
}
const asAnswer = (message: Buffer) => {
  const copy = Buffer.from(message);
  copy.writeUInt8(0x81, 2);
  return copy;
};

describe("DNS messages", () => {
  it("reads the question", () => {
    expect(parseQuery(query("WWW.Example.com"))).toEqual({
      id: 0x1234,
      name: "www.example.com",
      type: 1,
      end: 33,
    });
  });

  it("takes only an answer of the same id to the same question", () => {
    const asked = query("a.test");
    expect(answers(asAnswer(asked), asked)).toBe(true);
    expect(answers(asked, asked)).toBe(false);
    expect(answers(withId(asAnswer(asked), 1), asked)).toBe(false);
    expect(answers(asAnswer(query("b.test")), asked)).toBe(false);
  });

  it("refuses in the form of an answer to the question", () => {
    const asked = query("a.test");
    const refused = refusal(asked, rcodeRefused);
    expect(answers(refused, asked)).toBe(true);
    expect(refused.readUInt8(3) & 15).toBe(rcodeRefused);
  });

  it("never throws on nonsense", () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 0, maxLength: 64 }), fc.nat(60), (bytes, cut) => {
        parseQuery(Buffer.from(bytes));
        const damaged = Buffer.from(query("www.example.com"));
        damaged.set(bytes.subarray(0, 4), Math.min(cut, damaged.length - 4 < 0 ? 0 : damaged.length - 4));
        parseQuery(damaged.subarray(0, cut));
        answers(Buffer.from(bytes), damaged);
        if (parseQuery(damaged)) refusal(damaged, 2);
      }),
    );
  });
});
