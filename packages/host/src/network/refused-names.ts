/** Counts look-ups that one sandbox was refused, and remembers the latest names. */
import { limits } from "@cloche/protocol";
import type { EgressDenial } from "./egress-report.ts";

export class RefusedNames {
  /** In order of the last look-up. */
  readonly #names = new Map<string, { count: number; lastAtMs: number }>();
  count = 0;

  note(name: string, nowMs: number): void {
    const known = this.#names.get(name);
    this.count += 1;
    this.#names.delete(name);
    this.#names.set(name, { count: (known?.count ?? 0) + 1, lastAtMs: nowMs });
    const [oldest] = this.#names.keys();
    if (this.#names.size > limits.egressDenials && oldest !== undefined) this.#names.delete(oldest);
  }

  get recent(): EgressDenial[] {
    return [...this.#names].map(([destination, { count, lastAtMs }]) => ({
      destination,
      protocol: "dns",
      port: 0,
      count,
      lastAtMs,
    }));
  }
}
