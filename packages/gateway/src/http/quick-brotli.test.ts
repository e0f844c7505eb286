import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { quickBrotli } from "./quick-brotli.ts";

test("answers are compressed at a quality that takes little time", async () => {
  const answer = Buffer.from(Array.from({ length: 200 }, () => randomBytes(50).toString("hex")).join(","));
  const compressed = await quickBrotli.compress(answer);
  const params = { [constants.BROTLI_PARAM_QUALITY]: 4 };
  expect(Buffer.from(compressed).equals(brotliCompressSync(answer, { params }))).toBe(true);
  expect(brotliDecompressSync(compressed).equals(answer)).toBe(true);
});
