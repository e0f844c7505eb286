// Machine events to whoever watches: first every machine and what is ready, then each change (WatchMachines of host.proto).
import { create } from "@bufbuild/protobuf";
import {
  type Machine,
  type MachineEvent,
  MachineEvent_Kind,
  MachineEventSchema,
  type ReadyMachine,
} from "@cloche/protocol/host";

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
