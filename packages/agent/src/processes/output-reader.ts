/**
 * Reads the output of a process while it is written, from an offset of each stream on. The reader pulls: nothing more is read until it has
 * taken the last piece, and the log goes on meanwhile. Dropped bytes are reported as a gap.
 */
import { limits } from "@cloche/protocol";
import type { OutputStream } from "../spawner/index.ts";
import { type OutputLog, outputChange } from "./output-log.ts";

export const pieceBytes = 65_536;

/** Takes the output. Each function resolves false when the reader takes no more: it is gone, or was cut off because it is too slow. */
export interface OutputTaker {
  data(stream: OutputStream, offset: number, data: Buffer): Promise<boolean> | boolean;
  /** The bytes from `from` to before `to` are no longer kept. */
  gap(stream: OutputStream, from: number, to: number): Promise<boolean> | boolean;
}

export interface ReadStream {
  name: OutputStream;
  log: OutputLog;
  offset: number;
}

/**
 * Reads until the process has ended and all output was taken (true), or until the reader takes no more or `gone` aborts (false). Without
 * `follow` it reads only the present output.
 */
export async function readOutput(
  streams: readonly ReadStream[],
  taker: OutputTaker,
  gone: AbortSignal,
  follow: boolean,
): Promise<boolean> {
  const logs = streams.map(({ log }) => log);
  for (;;) {
    let moved = false;
    for (const stream of streams) {
      if (gone.aborted) return false;
      const piece = stream.log.at(stream.offset, pieceBytes);
      if (piece.kind === "nothing") continue;
      moved = true;
      const { name, offset } = stream;
      const taken =
        piece.kind === "data" ? taker.data(name, offset, piece.data) : taker.gap(name, offset, piece.to);
      stream.offset = piece.kind === "data" ? offset + piece.data.length : piece.to;
      if (taken !== true && !(await taken)) return false;
    }
    if (moved) continue;
    if (!follow || logs.every(({ ended }) => ended)) return true;
    await outputChange(logs, gone);
  }
}

interface Writable {
  readonly destroyed: boolean;
  write(data: Buffer | string): boolean;
  on(event: "drain" | "close", listener: () => void): unknown;
  off(event: "drain" | "close", listener: () => void): unknown;
}

/** Resolves true when all written data was sent; false when the far end is gone or takes nothing in time. */
export function goesOut(to: Writable, withinMs: number = limits.processReaderStallMs): Promise<boolean> {
  if (to.destroyed) return Promise.resolve(false);
  return new Promise((resolve) => {
    const done = (out: boolean) => (): void => {
      clearTimeout(timer);
      to.off("drain", drained);
      to.off("close", closed);
      resolve(out);
    };
    const drained = done(true);
    const closed = done(false);
    const timer = setTimeout(closed, withinMs);
    to.on("drain", drained);
    to.on("close", closed);
  });
}
