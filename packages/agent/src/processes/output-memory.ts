import { totalmem } from "node:os";
import { limits } from "@cloche/protocol";
import { type Account, largestBlockBytes, type OutputLog } from "./output-log.ts";

/** How long the size of the machine's memory is believed: a template's agent wakes up in machines of many sizes. */
const believedMs = 10_000;
const spareBlocks = 64;

function ofMachine(): number {
  const share = totalmem() * limits.processOutputMemoryShare;
  return Math.min(limits.processOutputTotalBytesMax, Math.max(limits.processOutputTotalBytesMin, share));
}

/**
 * The memory that the output of all processes takes together, kept below a part of the machine's. When it is used up, the output of
 * the processes that ended longest ago goes first, then the oldest of the largest; their readers are told of the gap.
 */
export class OutputMemory implements Account {
  readonly #measure: () => number;
  readonly #live = new Set<OutputLog>();
  /** In the order in which they ended. */
  readonly #ended = new Set<OutputLog>();
  /** Blocks to use again: garbage of the size of all output that passes would take more than what is kept. */
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

  /** Its process has ended. */
  retire(log: OutputLog): void {
    if (this.#live.delete(log)) this.#ended.add(log);
  }

  /** Its process is forgotten. */
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
