/**
 * The machines of one host as the host last reported them: fed by the host's stream, kept in memory only.
 *
 *   connecting ──first listing──▶ synced ──stream ends──▶ connecting (waits double) …
 *
 * Tells its listener of each complete listing, each change and each idle machine. A crash loses nothing: the next start
 * listens again.
 */
import type { Clock, Log } from "@cloche/base";
import {
  type AuditEvent,
  type Machine,
  MachineEvent_Kind,
  MachinePhase,
  type ReadyMachine,
} from "@cloche/protocol/host";
import { gatewayLimits } from "../limits.ts";
import type { HostCalls } from "./host-calls.ts";
import { reportedAudit, reportedMachine, ReportedMachines, reportedReady } from "./host-reports.ts";

export interface MachineListener {
  /** The view now holds every machine of the host. */
  synced(): void;
  changed(sandboxId: string): void;
  idle(sandboxId: string): void;
  /** All ready machines of the host; none while the stream is broken. */
  ready(machines: readonly ReadyMachine[]): void;
  /** A call of the data plane that the host answered. */
  audit(event: AuditEvent): void;
}

export class MachineView {
  readonly #host: HostCalls;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  #machines = new ReportedMachines();
  #listener: MachineListener | undefined;
  #isSynced = false;
  #stream = new AbortController();
  #following: Promise<void> | undefined;

  constructor(host: HostCalls, clock: Clock, log: Log) {
    this.#host = host;
    this.#clock = clock;
    this.#log = log;
  }

  /** True while the stream is open and its first listing is complete. */
  get isSynced(): boolean {
    return this.#isSynced;
  }

  get(sandboxId: string): Machine | undefined {
    return this.#machines.get(sandboxId);
  }

  all(): IterableIterator<Machine> {
    return this.#machines.values();
  }

  /** Takes the machine that a call returned, unless the stream has reported a newer version. */
  note(machine: Machine): void {
    const known = this.#machines.get(machine.sandboxId);
    if (known !== undefined && isOlder(machine, known)) return;
    this.#apply(machine);
    this.#listener?.changed(machine.sandboxId);
  }

  forget(sandboxId: string): void {
    this.#machines.delete(sandboxId);
  }

  start(listener: MachineListener): void {
    this.#listener = listener;
    this.#following = this.#follow();
  }

  /** Opens the stream anew at once; known machines stay until the next listing is complete. */
  reconnect(): void {
    this.#stream.abort(new Error("the host is connected anew"));
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#following;
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stop;
    let waitMs: number = gatewayLimits.watchRetryMs;
    while (!signal.aborted) {
      try {
        await this.#followOnce(() => {
          waitMs = gatewayLimits.watchRetryMs;
        });
        this.#log.warn({}, "the host ended its stream of machines");
      } catch (error) {
        const isWanted = signal.aborted || this.#stream.signal.aborted;
        if (!isWanted) this.#log.warn({ err: error }, "the host's stream of machines broke");
      }
      this.#isSynced = false;
      this.#listener?.ready([]);
      if (this.#stream.signal.aborted) {
        this.#stream = new AbortController();
        waitMs = gatewayLimits.watchRetryMs;
        continue;
      }
      await this.#clock.sleep(waitMs, AbortSignal.any([signal, this.#stream.signal])).catch(() => undefined);
      waitMs = Math.min(waitMs * 2, gatewayLimits.watchRetryMaxMs);
    }
  }

  async #followOnce(onSynced: () => void): Promise<void> {
    let listing = new ReportedMachines();
    for await (const event of this.#host.watch(AbortSignal.any([this.#stop.signal, this.#stream.signal]))) {
      const nowMs = this.#clock.nowMs();
      const machine = event.machine && reportedMachine(event.machine, nowMs);
      if (event.kind === MachineEvent_Kind.PRESENT && machine !== undefined) {
        listing.set(machine);
      } else if (event.kind === MachineEvent_Kind.SYNCED) {
        this.#machines = listing;
        listing = new ReportedMachines();
        this.#isSynced = true;
        onSynced();
        this.#listener?.synced();
      } else if (event.kind === MachineEvent_Kind.READY) {
        this.#listener?.ready(reportedReady(event.ready));
      } else if (event.kind === MachineEvent_Kind.AUDIT) {
        const audit = event.audit && reportedAudit(event.audit, nowMs);
        if (audit !== undefined) this.#listener?.audit(audit);
      } else if (machine !== undefined) {
        this.#notify(event.kind, machine);
      }
    }
  }

  #notify(kind: MachineEvent_Kind, machine: Machine): void {
    if (kind === MachineEvent_Kind.CHANGED) {
      this.#apply(machine);
      this.#listener?.changed(machine.sandboxId);
    } else if (kind === MachineEvent_Kind.IDLE) {
      this.#listener?.idle(machine.sandboxId);
    }
  }

  #apply(machine: Machine): void {
    if (machine.phase === MachinePhase.DESTROYED) this.#machines.delete(machine.sandboxId);
    else this.#machines.set(machine);
  }
}

const isOlder = (one: Machine, other: Machine): boolean => one.epoch < other.epoch;
