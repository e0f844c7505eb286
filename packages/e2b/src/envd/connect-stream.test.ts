import { Readable } from "node:stream";
import type { IncomingMessage } from "node:http";
import { expect, test } from "vitest";
import { readMessage, readMessages } from "./connect-stream.ts";

const envelope = (message: unknown, flags = 0): Buffer => {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt8(flags);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
};
const noHold = (): Promise<never> => Promise.reject(new Error("these bodies are small"));
const bodyOf = (...pieces: Buffer[]): IncomingMessage => Readable.from(pieces) as IncomingMessage;
const all = async (body: IncomingMessage): Promise<unknown[]> => {
  const messages: unknown[] = [];
  for await (const message of readMessages(body, noHold)) messages.push(message);
  return messages;
};

test("messages come whole however the body is cut", async () => {
  const whole = Buffer.concat([envelope({ a: 1 }), envelope({ b: "ü" }), envelope({}, 2)]);
  for (let size = 1; size <= whole.length; size += 1) {
    const pieces = Array.from({ length: Math.ceil(whole.length / size) }, (_none, at) =>
      whole.subarray(at * size, (at + 1) * size),
    );
    expect(await all(bodyOf(...pieces))).toEqual([{ a: 1 }, { b: "ü" }]);
  }
});

test.each([
  ["cut off", [envelope({ a: 1 }).subarray(0, 7)], "ends within a message"],
  ["no JSON", [Buffer.concat([Buffer.from([0, 0, 0, 0, 1]), Buffer.from("{")])], "not valid JSON"],
  ["no object", [envelope([1])], "must be a JSON object"],
  ["compressed", [envelope({ a: 1 }, 1)], "without compression"],
  ["too long", [Buffer.from([0, 0xff, 0, 0, 0])], "larger than"],
])("a body that is %s is refused", async (_what, pieces, words) => {
  await expect(all(bodyOf(...pieces))).rejects.toThrow(words);
});

test("a call without its message is refused", async () => {
  await expect(readMessage(bodyOf(), noHold)).rejects.toThrow("must hold one message");
});
