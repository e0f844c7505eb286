import { create, toBinary } from "@bufbuild/protobuf";
import { limits } from "@cloche/protocol";
import { CreateSandboxRequestSchema } from "@cloche/protocol/public";
import { expect, test } from "vitest";
import { boundProtoFields } from "./proto-fields.ts";

const most = 1_000;
const bound = (bytes: Uint8Array, fields = most): void =>
  boundProtoFields(CreateSandboxRequestSchema, bytes, fields);
const many = (...piece: number[]): Buffer => Buffer.concat(Array(most + 1).fill(Buffer.of(...piece)));
/** A field with a length; below 16,384 bytes. */
const field = (number: number, inner: Uint8Array): Buffer =>
  Buffer.concat([Buffer.of((number << 3) | 2, (inner.length & 0x7f) | 0x80, inner.length >> 7), inner]);

test("the largest request that the gateway takes has fewer fields than are allowed", () => {
  const entries = (count: number): Record<string, string> =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, "v"]));
  const texts = (count: number): string[] => Array(count).fill("example.org");
  const request = create(CreateSandboxRequestSchema, {
    metadata: entries(limits.metadataEntries),
    env: entries(limits.envEntries),
    egress: { mode: "allow", domains: texts(limits.egressDomains), cidrs: texts(limits.egressCidrs) },
  });
  expect(() => bound(toBinary(CreateSandboxRequestSchema, request), limits.protoFields)).not.toThrow();
});

test.each([
  ["unknown fields", many(0xf8, 0x01, 0)],
  ["the same text again", many(0x0a, 0)],
  ["entries of a map", many(0x22, 0)],
  ["keys of one entry", field(4, many(0x0a, 0))],
  ["domains of the egress", field(14, many(0x12, 0))],
])("many fields are refused before they are parsed: %s", (_what, bytes) => {
  expect(() => bound(bytes)).toThrow(/more than 1000 fields/);
});

test.each([
  ["a number in place of a text", Buffer.of(0x08, 0)],
  ["a number in place of a map", Buffer.of(0x20, 0)],
  ["a number as a map's value", field(4, Buffer.of(0x10, 0))],
  ["a text in place of a number", Buffer.of(0x3a, 0)],
  ["a group", Buffer.of(0xfb, 0x01, 0xfc, 0x01)],
])("a field of another wire type is refused: %s", (_what, bytes) => {
  expect(() => bound(bytes)).toThrow(/wrong type on the wire/);
});
