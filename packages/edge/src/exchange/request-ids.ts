import { randomFillSync } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { newRequestId, requestIdFrom } from "@cloche/protocol";

/** Random bytes are drawn 8 KiB at a time, because a system call for each request would cost too much. */
const pool = Buffer.alloc(8_192);
let used = pool.length;

function pooledRandomBytes(length: number): Uint8Array {
  if (used + length > pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const bytes = pool.subarray(used, used + length);
  used += length;
  return bytes;
}

export const newId = (): string => newRequestId(pooledRandomBytes);

/** The caller's `x-request-id` if its form is valid, else a new one (spec/contract.md, Both surfaces). */
export function requestIdOf(request: IncomingMessage): string {
  return requestIdFrom(request.headers["x-request-id"], pooledRandomBytes);
}
