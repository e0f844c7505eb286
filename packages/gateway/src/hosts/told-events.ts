/**
 * Audit events of a cluster's hosts. Each host tells every gateway; the one that watches it notes the event, the others remember it for
 * 30 s, and whoever begins to watch the host notes what it remembers. The id of an entry is made of the event, so each is noted
 * once, whoever was first. Lost is only what a host told while no gateway followed it, beyond the thousand that it keeps.
 */
import type { Clock } from "@cloche/base";
import type { AuditEvent } from "@cloche/protocol/host";
import { gatewayLimits } from "../limits.ts";
import type { Watches } from "./host-watches.ts";

const { toldEventsMs, toldEventsMax } = gatewayLimits;

export class ToldEvents {
  readonly #watches: Watches;
  readonly #note: (event: AuditEvent) => void;
  readonly #clock: Clock;
  /** Of each host, oldest first; with when it was told, by the monotonic clock. */
  readonly #recent = new Map<string, { event: AuditEvent; atMs: number }[]>();

  constructor(watches: Watches, note: (event: AuditEvent) => void, clock: Clock) {
    this.#watches = watches;
    this.#note = note;
    this.#clock = clock;
  }

  told(hostId: string, event: AuditEvent): void {
    if (this.#watches.isMine(hostId)) return this.#note(event);
    const fresh = this.#fresh(hostId);
    fresh.push({ event, atMs: this.#clock.monotonicMs() });
    this.#recent.set(hostId, fresh.slice(-toldEventsMax));
  }

  /** The host is watched from here on. */
  gained(hostId: string): void {
    for (const { event } of this.#fresh(hostId)) this.#note(event);
    this.#recent.delete(hostId);
  }

  #fresh(hostId: string): { event: AuditEvent; atMs: number }[] {
    const sinceMs = this.#clock.monotonicMs() - toldEventsMs;
    return (this.#recent.get(hostId) ?? []).filter(({ atMs }) => atMs >= sinceMs);
  }
}
