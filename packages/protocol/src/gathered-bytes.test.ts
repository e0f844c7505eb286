import { expect, test } from "vitest";
import { GatheredBytes } from "./gathered-bytes.ts";

const bytes = (length: number): Uint8Array => Uint8Array.from({ length }, (_none, at) => (at * 7) % 251);

test.each([
  ["single bytes", [1]],
  ["large pieces", [70_000]],
  ["small and large in turn", [1, 5_000, 4_095, 4_096, 0, 17]],
])("%s come out as they went in", (_what, sizes) => {
  const sent = bytes(300_000);
  const gathered = new GatheredBytes();
  for (let at = 0, turn = 0; at < sent.length; turn += 1) {
    const size = sizes[turn % sizes.length] as number;
    gathered.push(sent.subarray(at, at + size));
    at += size;
  }
  expect(gathered.length).toBe(sent.length);
  expect(Buffer.compare(gathered.take(), sent)).toBe(0);
  expect(gathered.length).toBe(0);
  expect(gathered.take()).toHaveLength(0);
});

test("can be filled again after it was emptied", () => {
  const gathered = new GatheredBytes();
  for (const round of [1, 2]) {
    for (let at = 0; at < 10; at += 1) gathered.push(Uint8Array.of(round));
    expect([...gathered.take()]).toEqual(Array.from({ length: 10 }, () => round));
  }
});

test("a megabyte of single bytes is held in few pieces", () => {
  const gathered = new GatheredBytes();
  const one = Uint8Array.of(1);
  for (let count = 0; count < 1_048_576; count += 1) gathered.push(one);
  expect(gathered.takePieces().length).toBeLessThan(300);
});
