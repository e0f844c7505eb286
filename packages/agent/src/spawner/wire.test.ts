import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Frame, FrameReader, FrameWriter, headerBytes, PayloadReader } from "./wire.ts";

describe("frames", () => {
  it("come out as they went in, however the stream is cut", () => {
    const frame = fc.record({
      type: fc.integer({ min: 1, max: 255 }),
      flags: fc.integer({ min: 0, max: 255 }),
      id: fc.nat(0xffffffff),
      payload: fc.uint8Array({ maxLength: 300 }),
    });
    fc.assert(
      fc.property(
        fc.array(frame, { maxLength: 8 }),
        fc.array(fc.integer({ min: 1, max: 50 })),
        (frames, cuts) => {
          const stream = Buffer.concat(
            frames.map(({ type, flags, id, payload }) =>
              new FrameWriter().raw(Buffer.from(payload)).finish(type, flags, id),
            ),
          );
          const reader = new FrameReader();
          const seen: Frame[] = [];
          for (let at = 0, turn = 0; at < stream.length; turn += 1) {
            const next = at + (cuts[turn % Math.max(cuts.length, 1)] ?? stream.length);
            reader.push(stream.subarray(at, next), (one) =>
              seen.push({ ...one, payload: Buffer.from(one.payload) }),
            );
            at = next;
          }
          expect(seen).toEqual(frames.map((one) => ({ ...one, payload: Buffer.from(one.payload) })));
        },
      ),
    );
  });

  it("may have a payload that follows uncopied", () => {
    const rest = [Buffer.from("two"), Buffer.from("pieces")];
    const start = new FrameWriter().u32(7).finish(36, 0, 5, 9);
    const seen: Frame[] = [];
    new FrameReader().push(Buffer.concat([start, ...rest]), (frame) => seen.push(frame));
    expect(seen).toEqual([
      { type: 36, flags: 0, id: 5, payload: Buffer.from("\u0007\u0000\u0000\u0000twopieces") },
    ]);
  });

  it("have a length that can be", () => {
    for (const length of [0, headerBytes - 5, 0xffffffff]) {
      const head = Buffer.alloc(4);
      head.writeUInt32LE(length);
      expect(() => new FrameReader().push(head, () => undefined)).toThrow("frame of");
    }
  });

  it("hold strings whose bytes need not be text", () => {
    const name = Buffer.from([0x61, 0xff]);
    const payload = new FrameWriter()
      .u32(7)
      .string("größe")
      .u64(2 ** 40)
      .string(name)
      .finish(1, 0, 1)
      .subarray(headerBytes);
    // From the agent a NUL follows each string; the guest sends none, so the reader is given what the guest would send.
    const sent = Buffer.concat([payload.subarray(0, 15), payload.subarray(16, payload.length - 1)]);
    const reader = new PayloadReader(sent);
    expect([reader.u32(), reader.bytes().toString(), reader.u64(), reader.bytes()]).toEqual([
      7,
      "größe",
      2 ** 40,
      name,
    ]);
    expect(reader.ended).toBe(true);
    expect(() => new PayloadReader(Buffer.from([9, 0, 0, 0, 1])).bytes()).toThrow(RangeError);
  });
});
