import { create, toBinary } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { limits } from "@cloche/protocol";
import {
  ListAuditEntriesResponseSchema,
  ListCheckpointsResponseSchema,
  ListSandboxesResponseSchema,
  SandboxState,
} from "@cloche/protocol/public";
import { expect, test } from "vitest";
import { fittingPage, wireBytes } from "./page-bytes.ts";

/** What a client of gRPC takes unless it is told to take more. */
const grpcDefault = 4 * 1024 * 1024;
const text = (length: number): string => "é€"[length % 2]?.repeat(length) ?? "";
const sandbox = (at: number) => ({
  id: `sbx-${at}`,
  name: text(64),
  state: SandboxState.RUNNING,
  errorMessage: text(200),
  metadata: Object.fromEntries(
    Array.from({ length: at % 65 }, (_, key) => [`${key}${text(100)}`, text(1_000)]),
  ),
  cpus: 0.5,
  memoryMb: 262_144,
  autoResume: true,
  publicPorts: [portValue(8_080), portValue("*")],
  egress: {
    mode: "allow",
    domains: Array.from({ length: at % 129 }, () => text(253)),
    cidrs: ["10.0.0.0/8"],
  },
});
const portValue = (port: number | string) =>
  create(ValueSchema, {
    kind:
      typeof port === "number" ? { case: "numberValue", value: port } : { case: "stringValue", value: port },
  });
const bytesOf = (sandboxes: ReturnType<typeof sandbox>[]): number =>
  toBinary(ListSandboxesResponseSchema, create(ListSandboxesResponseSchema, { sandboxes } as never)).length;

test("a message counts as at least its bytes", () => {
  for (let at = 0; at < 200; at += 7) {
    const exact = bytesOf([sandbox(at)]);
    expect(wireBytes(sandbox(at))).toBeGreaterThanOrEqual(exact);
    expect(wireBytes(sandbox(at))).toBeLessThan(exact * 1.1 + 300);
  }
});

test("a page of the largest messages is less than gRPC's clients take", () => {
  const many = <Message>(message: Message): Message[] =>
    fittingPage(Array.from({ length: limits.unpagedList }, () => message));
  const sandboxes = many(sandbox(64));
  expect(sandboxes.length).toBeGreaterThan(10);
  expect(bytesOf(sandboxes)).toBeLessThan(grpcDefault);
  const entries = many({
    id: "aud-1",
    at: text(30),
    actor: text(200),
    subject: text(200),
    detail: text(1_000),
  });
  const audit = create(ListAuditEntriesResponseSchema, { entries } as never);
  expect(toBinary(ListAuditEntriesResponseSchema, audit).length).toBeLessThan(grpcDefault);
  const checkpoints = many({ id: "ckpt-1", name: text(128), sizeBytes: 2 ** 40, visible: true });
  const named = create(ListCheckpointsResponseSchema, { checkpoints } as never);
  expect(toBinary(ListCheckpointsResponseSchema, named).length).toBeLessThan(grpcDefault);
});

test("a page has one message at least", () => {
  const large = { name: "x".repeat(limits.pageBytes + 1) };
  expect(fittingPage([large, large])).toEqual([large]);
  expect(fittingPage([])).toEqual([]);
});

test("a page has all that fit", () => {
  const small = Array.from({ length: 1_000 }, (_, at) => ({ id: `key-${at}` }));
  expect(fittingPage(small)).toEqual(small);
});
