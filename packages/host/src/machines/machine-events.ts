/**
 * Machine events for watchers: first every machine and the ready machines, then each change (WatchMachines of host.proto).
 */
import { create } from "@bufbuild/protobuf";
import {
  type AuditEvent,
  type Machine,
  type MachineEvent,
  MachineEvent_Kind,
  MachineEventSchema,
  type ReadyMachine,
} from "@cloche/protocol/host";

/** Audit events kept while there is no watcher; the oldest are dropped. */
const undeliveredMax = 1_000;
/** The stream of a watcher this far behind is ended; the watcher reconnects and gets the full listing. */
const backlogMax = 10_000;

interface Watcher {
  events: MachineEvent[];
  wake: () => void;
}

export class MachineEvents {
  readonly #list: () => Machine[];
  readonly #watchers = new Set<Watcher>();
  readonly #closing = new AbortController();
  #ready: ReadyMachine[] = [];
  #undelivered: AuditEvent[] = [];

  constructor(list: () => Machine[]) {
    this.#list = list;
  }

  emit(kind: MachineEvent_Kind, machine: Machine): void {
    this.#deliver(create(MachineEventSchema, { kind, machine }));
  }

  /** `ready`: the full list of machines made ahead. */
  offer(ready: ReadyMachine[]): void {
    this.#ready = ready;
    this.#deliver(create(MachineEventSchema, { kind: MachineEvent_Kind.READY, ready }));
  }

  /** Sends an event for the audit log; keeps it until there is a watcher. */
  note(audit: AuditEvent): void {
    if (this.#watchers.size === 0)
      this.#undelivered = [...this.#undelivered.slice(1 - undeliveredMax), audit];
    else this.#deliver(create(MachineEventSchema, { kind: MachineEvent_Kind.AUDIT, audit }));
  }

  #deliver(event: MachineEvent): void {
    for (const watcher of this.#watchers) {
      watcher.events.push(event);
      watcher.wake();
    }
  }

  /** Ends every stream. */
  close(): void {
    this.#closing.abort();
  }

  get isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  async *watch(signal: AbortSignal): AsyncGenerator<MachineEvent> {
    const ended = AbortSignal.any([signal, this.#closing.signal]);
    const watcher: Watcher = { events: [], wake: () => undefined };
    this.#watchers.add(watcher);
    const onEnd = (): void => watcher.wake();
    ended.addEventListener("abort", onEnd, { once: true });
    try {
      for (const machine of this.#list()) {
        yield create(MachineEventSchema, { kind: MachineEvent_Kind.PRESENT, machine });
      }
      yield create(MachineEventSchema, { kind: MachineEvent_Kind.READY, ready: this.#ready });
      yield create(MachineEventSchema, { kind: MachineEvent_Kind.SYNCED });
      for (const audit of this.#undelivered.splice(0))
        yield create(MachineEventSchema, { kind: MachineEvent_Kind.AUDIT, audit });
      while (!ended.aborted && watcher.events.length <= backlogMax) {
        const event = watcher.events.shift();
        if (event) {
          yield event;
          continue;
        }
        await new Promise<void>((resolve) => {
          watcher.wake = resolve;
        });
      }
    } finally {
      ended.removeEventListener("abort", onEnd);
      this.#watchers.delete(watcher);
    }
  }
}
