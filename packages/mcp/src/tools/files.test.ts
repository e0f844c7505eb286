import type { DataPlane } from "@cloche/sdk";
import { expect, it } from "vitest";
import { mcpLimits } from "../limits.ts";
import { listOf } from "./files.ts";

/** A sandbox whose list of a directory is this text and then `bytes` of spaces; counts what is read of them. */
function sandboxOf(text: string, bytes: number) {
  const piece = Buffer.alloc(65_536, " ");
  let read = 0;
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(Buffer.from(text)),
    pull(controller) {
      if (read >= bytes) return controller.close();
      read += piece.length;
      controller.enqueue(piece);
    },
  });
  const dataPlane = { request: async () => new Response(body) } as unknown as DataPlane;
  return { sandbox: { dataPlane }, read: () => read };
}

const options = { depth: 1, signal: new AbortController().signal };
const empty = { path: "/", entries: [], truncated: false };

it("a list is read", async () => {
  const { sandbox } = sandboxOf(JSON.stringify(empty), 1_000_000);
  expect(await listOf(sandbox, "/", options)).toEqual(empty);
});

it("a list that is larger than what the server reads of one is refused, its rest unread", async () => {
  const { sandbox, read } = sandboxOf(JSON.stringify(empty), 10 * mcpLimits.listBytes);
  await expect(listOf(sandbox, "/", options)).rejects.toThrow(/the list of \/ is larger than .*subdirectory/);
  expect(read()).toBeLessThan(2 * mcpLimits.listBytes);
});
