import { totalmem } from "node:os";
import { limits } from "@cloche/protocol";
import { type Account, largestBlockBytes, type OutputLog } from "./output-log.ts";

/** How long the size of the machine's memory is cached: a template's agent is restored into machines of many sizes. */
const believedMs = 10_000;
const spareBlocks = 64;

function ofMachine(): number {
  const share = totalmem() * limits.processOutputMemoryShare;
  return Math.min(limits.processOutputTotalBytesMax, Math.max(limits.processOutputTotalBytesMin, share));
}

/**
 * Limits the memory of all processes' output to a share of the machine's memory. At the limit, output of the processes that ended
 * longest ago is dropped first, then the oldest output of the largest log; readers are told of the gap.
 */
export class OutputMemory implements Account {
  readonly #measure: () => number;
  readonly #live = new Set<OutputLog>();
  /** In the order in which they ended. */
  readonly #ended = new Set<OutputLog>();
  /** Blocks to reuse: otherwise all output that passes would become garbage, which takes more memory than the kept output. */
  readonly #spare: Buffer[] = [];
  #usedBytes = 0;
  #mostBytes = 0;
  #measuredMs = -Infinity;

  constructor(measure: () => number = ofMachine) {
    this.#measure = measure;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  charge(log: OutputLog, bytes: number): void {
    this.#usedBytes += bytes;
    if (bytes <= 0) return;
    if (!this.#ended.has(log)) this.#live.add(log);
    if (this.#usedBytes > this.#most()) this.#shrink();
  }

  takeBlock(): Buffer {
    return this.#spare.pop() ?? Buffer.allocUnsafeSlow(largestBlockBytes);
  }

  giveBlock(block: Buffer): void {
    if (this.#spare.length < spareBlocks) this.#spare.push(block);
  }

  /** Notes that the log's process has ended. */
  retire(log: OutputLog): void {
    if (this.#live.delete(log)) this.#ended.add(log);
  }

  /** Drops the log of a process that is no longer listed. */
  forget(log: OutputLog): void {
    if (!this.#live.delete(log) && !this.#ended.delete(log)) return;
    this.#usedBytes -= log.memoryBytes;
  }

  #shrink(): void {
    const most = this.#most();
    for (const log of this.#ended) {
      if (this.#usedBytes <= most) return;
      log.drop(Infinity);
    }
    while (this.#usedBytes > most) {
      let largest: OutputLog | undefined;
      for (const log of this.#live) if (log.memoryBytes > (largest?.memoryBytes ?? 0)) largest = log;
      if (largest === undefined) return;
      largest.drop(Math.max(largestBlockBytes, this.#usedBytes - most));
    }
  }

  #most(): number {
    const nowMs = performance.now();
    if (nowMs - this.#measuredMs > believedMs) {
      this.#measuredMs = nowMs;
      this.#mostBytes = this.#measure();
    }
    return this.#mostBytes;
  }
}
