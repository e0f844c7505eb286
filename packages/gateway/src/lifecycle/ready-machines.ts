/**
 * The ready machines of the hosts, each with an id and a name that no sandbox has yet. A new sandbox of the same shape
 * takes that id and name, and its machine is assigned already.
 *
 *   offered ──take──▶ taken (while its record is being written) ──release──▶ offered, or a sandbox's: its record tells
 *
 * Fed by the hosts' streams. Only a hint: an offered machine may be gone when the host is asked for it.
 */
import type { ReadyMachine } from "@cloche/protocol/host";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Records } from "./records.ts";

export type ReadyShape = Pick<SandboxRecord, "runtime" | "template" | "cpus" | "memoryMb" | "diskMb">;

export class ReadyMachines {
  readonly #records: Pick<Records, "get">;
  readonly #taken = new Set<string>();
  /** By shape, then by host. */
  readonly #offered = new Map<string, Map<string, ReadyMachine[]>>();

  constructor(records: Pick<Records, "get">) {
    this.#records = records;
  }

  /** Replaces the host's former offer. */
  offer(hostId: string, ready: readonly ReadyMachine[]): void {
    for (const [key, byHost] of this.#offered) {
      byHost.delete(hostId);
      if (byHost.size === 0) this.#offered.delete(key);
    }
    for (const one of ready) {
      const key = keyOf(one);
      const byHost = this.#offered.get(key) ?? new Map<string, ReadyMachine[]>();
      this.#offered.set(key, byHost.set(hostId, [...(byHost.get(hostId) ?? []), one]));
    }
  }

  /** Ids of the hosts that offer a machine of the shape. */
  hosts(shape: ReadyShape): Iterable<string> {
    return this.#offered.get(keyOf(shape))?.keys() ?? [];
  }

  /** A machine of the shape on this host whose id no sandbox has; reserved for the caller until `release`. */
  async take(hostId: string, shape: ReadyShape): Promise<ReadyMachine | undefined> {
    for (const ready of this.#offered.get(keyOf(shape))?.get(hostId) ?? []) {
      const id = ready.sandboxId;
      if (this.#taken.has(id)) continue;
      this.#taken.add(id);
      if ((await this.#records.get(id)) === undefined) return ready;
      this.#taken.delete(id);
    }
    return undefined;
  }

  /** Call it when the sandbox's record is written, or never will be. Harmless for an id that was not taken. */
  release(sandboxId: string): void {
    this.#taken.delete(sandboxId);
  }
}

const keyOf = ({ runtime, template, cpus, memoryMb, diskMb }: ReadyShape): string =>
  JSON.stringify([runtime, template, cpus, memoryMb, diskMb]);
