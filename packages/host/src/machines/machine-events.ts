// Machine events to whoever watches: first every machine and what is ready, then each change (WatchMachines of host.proto).
import { create } from "@bufbuild/protobuf";
import {
  type AuditEvent,
  type Machine,
  type MachineEvent,
  MachineEvent_Kind,
  MachineEventSchema,
  type ReadyMachine,
} from "@cloche/protocol/host";

/** Of the audit log, while nobody watches. */
const UNHEARD_MAX = 1_000;
/** A watcher that falls this far behind is ended; it watches anew and gets the full listing. */
const BACKLOG_MAX = 10_000;

interface Watcher {
  events: MachineEvent[];
  wake: () => void;
}

export class MachineEvents {
  readonly #list: () => Machine[];
  readonly #watchers = new Set<Watcher>();
  readonly #closing = new AbortController();
  #ready: ReadyMachine[] = [];
  #unheard: AuditEvent[] = [];

  constructor(list: () => Machine[]) {
    this.#list = list;
  }

  emit(kind: MachineEvent_Kind, machine: Machine): void {
    this.#tell(create(MachineEventSchema, { kind, machine }));
  }

  /** These are all machines made ahead that there are now. */
  offer(ready: ReadyMachine[]): void {
    this.#ready = ready;
    this.#tell(create(MachineEventSchema, { kind: MachineEvent_Kind.READY, ready }));
  }

  /** For the audit log; kept until somebody watches. */
  note(audit: AuditEvent): void {
    if (this.#watchers.size === 0) this.#unheard = [...this.#unheard.slice(1 - UNHEARD_MAX), audit];
    else this.#tell(create(MachineEventSchema, { kind: MachineEvent_Kind.AUDIT, audit }));
  }

  #tell(event: MachineEvent): void {
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
      for (const audit of this.#unheard.splice(0))
        yield create(MachineEventSchema, { kind: MachineEvent_Kind.AUDIT, audit });
      while (!ended.aborted && watcher.events.length <= BACKLOG_MAX) {
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
