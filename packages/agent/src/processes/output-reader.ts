/**
 * One who reads the output of a process as it comes, from an offset of each stream on. It pulls: while it does not take what it was
 * given nothing more is made for it, and a log goes on without it. What it missed it is told of as a gap.
 */
import { limits } from "@cloche/protocol";
import type { OutputStream } from "../spawner/index.ts";
import { type OutputLog, outputChange } from "./output-log.ts";

export const pieceBytes = 65_536;

/** Takes what is read. Each resolves false when its reader takes no more: it is gone, or was cut off as too slow. */
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

/** Reads on until the process has ended and all was taken (true), the reader takes no more or `gone` aborts (false). Without `follow`: what there is. */
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

/** Resolves true when what was written has gone out; false when the far end is gone, or took nothing in time. */
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
