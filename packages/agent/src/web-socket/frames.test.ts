import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { frameHead, FrameReader, opcodes, WebSocketError } from "./frames.ts";

/** A frame as a client sends it. */
export function clientFrame(opcode: number, payload: Buffer, fin = true): Buffer {
  const head = frameHead(opcode, payload.length);
  head[0] = (fin ? 0x80 : 0) | opcode;
  head[1] = (head[1] as number) | 0x80;
  const mask = Buffer.from([1, 2, 3, 4]);
  return Buffer.concat([head, mask, payload.map((byte, at) => byte ^ (mask[at & 3] as number))]);
}

function all(reader: FrameReader): { opcode: number; payload: string; fin: boolean }[] {
  const frames = [];
  for (let frame = reader.next(); frame; frame = reader.next())
    frames.push({ opcode: frame.opcode, payload: frame.payload.toString("hex"), fin: frame.fin });
  return frames;
}

describe("the reader of frames", () => {
  it("reads what was sent, however it is cut", () => {
    const sent = fc.array(fc.uint8Array({ maxLength: 300 }), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(sent, fc.integer({ min: 1, max: 700 }), (payloads, cut) => {
        const bytes = Buffer.concat(payloads.map((one) => clientFrame(opcodes.binary, Buffer.from(one))));
        const reader = new FrameReader(1_000);
        const read = [];
        for (let at = 0; at < bytes.length; at += cut) {
          reader.push(Buffer.from(bytes.subarray(at, at + cut)));
          read.push(...all(reader));
        }
        expect(read.map(({ payload }) => payload)).toEqual(
          payloads.map((one) => Buffer.from(one).toString("hex")),
        );
      }),
    );
  });

  it("reads the longest lengths", () => {
    const payload = Buffer.alloc(70_000, 5);
    const reader = new FrameReader(100_000);
    reader.push(clientFrame(opcodes.binary, payload));
    expect(reader.next()?.payload.equals(payload)).toBe(true);
  });

  it.each([
    ["a reserved bit", Buffer.from([0xc2, 0x80, 0, 0, 0, 0]), 1002],
    ["an unknown type", Buffer.from([0x83, 0x80, 0, 0, 0, 0]), 1002],
    ["no mask", Buffer.from([0x82, 0x01, 0x61]), 1002],
    ["a long ping", Buffer.from([0x89, 0xfe, 0, 126]), 1002],
    ["a ping in parts", Buffer.from([0x09, 0x80, 0, 0, 0, 0]), 1002],
    ["what is too large", Buffer.from([0x82, 0xfe, 0x03, 0xe9]), 1009],
    ["what is absurd", Buffer.from([0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), 1009],
  ])("refuses %s", (_what, bytes, code) => {
    const reader = new FrameReader(1_000);
    reader.push(bytes);
    expect(() => reader.next()).toThrow(expect.objectContaining({ code }));
  });

  it("answers or refuses any bytes, and nothing else", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        const reader = new FrameReader(100);
        reader.push(Buffer.from(bytes));
        try {
          all(reader);
        } catch (error) {
          expect(error).toBeInstanceOf(WebSocketError);
        }
      }),
    );
  });
});
