/**
 * Machines that hosts have made ahead, each under an id and a name that are nobody's yet: a new sandbox of that shape takes
 * them over, and finds its machine assigned already.
 *
 *   offered ──take──▶ taken (while its record is being written) ──release──▶ offered, or a sandbox's: its record tells
 *
 * Fed by the hosts' streams. A hint and no more: what is offered may be gone by the time the host is asked for it.
 */
import type { ReadyMachine } from "@cloche/protocol/host";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Records } from "./records.ts";

export type ReadyShape = Pick<SandboxRecord, "runtime" | "template" | "cpus" | "memoryMb" | "diskMb">;

export class ReadyMachines {
  readonly #records: Pick<Records, "get">;
  readonly #taken = new Set<string>();
  readonly #offered = new Map<string, readonly ReadyMachine[]>();

  constructor(records: Pick<Records, "get">) {
    this.#records = records;
  }

  /** These are all that the host has now. */
  offer(hostId: string, ready: readonly ReadyMachine[]): void {
    if (ready.length === 0) this.#offered.delete(hostId);
    else this.#offered.set(hostId, ready);
  }

  /** Whether the host offers one of that shape that nobody here has taken. */
  has(hostId: string, shape: ReadyShape): boolean {
    const offered = this.#offered.get(hostId) ?? [];
    return offered.some((ready) => fits(ready, shape) && !this.#taken.has(ready.sandboxId));
  }

  /** One of the host's of that shape that is nobody's, the caller's until `release`. */
  async take(hostId: string, shape: ReadyShape): Promise<ReadyMachine | undefined> {
    for (const ready of this.#offered.get(hostId) ?? []) {
      const id = ready.sandboxId;
      if (!fits(ready, shape) || this.#taken.has(id)) continue;
      this.#taken.add(id);
      if ((await this.#records.get(id)) === undefined) return ready;
      this.#taken.delete(id);
    }
    return undefined;
  }

  /** Its record is written, or never will be. Harmless for an id that was not taken. */
  release(sandboxId: string): void {
    this.#taken.delete(sandboxId);
  }
}

const fits = (ready: ReadyMachine, shape: ReadyShape): boolean =>
  ready.runtime === shape.runtime &&
  ready.template === shape.template &&
  ready.cpus === shape.cpus &&
  ready.memoryMb === shape.memoryMb &&
  ready.diskMb === shape.diskMb;
