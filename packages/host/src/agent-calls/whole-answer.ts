/**
 * Reads one complete answer to a request of ours, or fails, before a deadline that holds whatever the peer does. A peer may send
 * nothing, a head without a body, a body that never ends or trickles, or close in the middle; or bytes that belong to no answer (1xx
 * answers, empty lines), which would keep this process busy until the deadline.
 */
import type { ClientRequest } from "node:http";
import { asBuffer } from "@cloche/base";
import { GatheredBytes } from "@cloche/protocol";

export interface AnswerLimits {
  /** From the call to the last byte of the answer. */
  deadlineMs: number;
  /** Limit of the answer's body. */
  bytes: number;
  /** Ends the call at once. */
  signal?: AbortSignal | undefined;
  /** Leaves the connection open after a whole answer. */
  keep?: boolean;
}

/** Bytes that come for an answer beside its body: head, chunk sizes. */
const aroundBytesMax = 64 * 1024;

export interface WholeAnswer {
  status: number;
  text: string;
}

export class TooLateError extends Error {
  constructor(deadlineMs: number) {
    super(`no whole answer in ${deadlineMs} ms`);
  }
}

/** Sends `body` through `call`, which must not have sent anything. Closes the connection on failure, and after an answer unless `keep`. */
export function wholeAnswer(call: ClientRequest, body: string, limits: AnswerLimits): Promise<WholeAnswer> {
  const { deadlineMs, bytes, signal, keep = false } = limits;
  return new Promise((resolve, reject) => {
    let received = 0;
    const onBytes = (chunk: Buffer): void => {
      received += chunk.length;
      if (received > 2 * bytes + aroundBytesMax)
        fail(new Error(`more than ${received} bytes came for one answer`));
    };
    const over = (): void => {
      clearTimeout(deadline);
      call.socket?.off("data", onBytes);
      signal?.removeEventListener("abort", onAbort);
    };
    const fail = (error: Error): void => {
      over();
      call.destroy();
      reject(error);
    };
    const onAbort = (): void => fail(asError(signal?.reason));
    const deadline = setTimeout(() => fail(new TooLateError(deadlineMs)), deadlineMs);
    // Kept for errors that the call emits after it was destroyed.
    call.on("error", fail);
    call.once("close", () => fail(new Error("the connection ended before the answer did")));
    call.once("socket", (socket) => socket.on("data", onBytes));
    call.once("information", () => fail(new Error("an informational answer, which no agent sends")));
    call.once("response", (response) => {
      const gathered = new GatheredBytes();
      response.on("error", fail);
      response.on("data", (chunk: Buffer) => {
        if (gathered.length + chunk.length > bytes)
          fail(new Error(`the answer is longer than ${bytes} bytes`));
        else gathered.push(chunk);
      });
      response.once("end", () => {
        over();
        if (!keep) call.destroy();
        resolve({ status: response.statusCode ?? 0, text: asBuffer(gathered.take()).toString("utf8") });
      });
    });
    if (signal?.aborted) return onAbort();
    signal?.addEventListener("abort", onAbort, { once: true });
    call.end(body);
  });
}

const asError = (reason: unknown): Error => (reason instanceof Error ? reason : new Error(String(reason)));
