/**
 * Audit events of a cluster's hosts. A host reports each event to every gateway. The gateway that watches the host
 * writes it; the others remember it for 30 s, and a gateway that begins to watch the host writes what it remembers. An
 * entry's id is computed from the event, so each event is written once. Events are lost only if no gateway followed the
 * host for so long that it reported more than the thousand that it keeps.
 */
import type { Clock } from "@cloche/base";
import type { AuditEvent } from "@cloche/protocol/host";
import { gatewayLimits } from "../limits.ts";
import type { Watches } from "./host-watches.ts";

const { reportedEventsMs, reportedEventsMax } = gatewayLimits;

export class ReportedEvents {
  readonly #watches: Watches;
  readonly #note: (event: AuditEvent) => void;
  readonly #clock: Clock;
  /** By host, its recent events, oldest first, with the monotonic time of the report. */
  readonly #recent = new Map<string, { event: AuditEvent; atMs: number }[]>();

  constructor(watches: Watches, note: (event: AuditEvent) => void, clock: Clock) {
    this.#watches = watches;
    this.#note = note;
    this.#clock = clock;
  }

  report(hostId: string, event: AuditEvent): void {
    if (this.#watches.isMine(hostId)) return this.#note(event);
    const fresh = this.#fresh(hostId);
    fresh.push({ event, atMs: this.#clock.monotonicMs() });
    this.#recent.set(hostId, fresh.slice(-reportedEventsMax));
  }

  /** This gateway now watches the host: writes the events that it remembers. */
  gained(hostId: string): void {
    for (const { event } of this.#fresh(hostId)) this.#note(event);
    this.#recent.delete(hostId);
  }

  #fresh(hostId: string): { event: AuditEvent; atMs: number }[] {
    const sinceMs = this.#clock.monotonicMs() - reportedEventsMs;
    return (this.#recent.get(hostId) ?? []).filter(({ atMs }) => atMs >= sinceMs);
  }
}
