/**
 * Compares all machines of a host with the records: when the host's listing is complete, when this gateway begins to
 * watch the host, and every minute. When a lost host is back, its machines stay frozen until the gateway has admitted
 * them:
 *
 *   registered again ──▶ awaits admission ──copies of moved sandboxes are destroyed──▶ admitted ──▶ compared as any other
 *
 * A sandbox that is not SUSPENDED leaves a lost host only in a transaction that checks that the host is still lost
 * (`leavesLostHost`, database/sandboxes.ts). So sandboxes whose records name the host after it has registered are its
 * own. One that is SUSPENDED and durable may leave at any moment: its machine is admitted only if it does not run. Keeps
 * no state that must survive a crash.
 */
import { type Clock, type Log, Turns } from "@cloche/base";
import { type Machine, MachinePhase } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import { isDurable, type SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { Watches } from "../hosts/host-watches.ts";
import { gatewayLimits } from "../limits.ts";
import type { CallContext, HostCalls } from "../hosts/host-calls.ts";
import type { Orphans } from "./orphans.ts";
import { isDue, type Reconciler } from "./reconciler.ts";
import type { UsageWatch } from "./usage-watch.ts";

export interface HostComparisonDependencies {
  database: Database;
  fleet: Fleet;
  watches: Watches;
  reconciler: Reconciler;
  orphans: Orphans;
  usage: UsageWatch;
  clock: Clock;
  log: Log;
  /** Sends the public keys to a host; needed each time the host comes back. */
  pushKeys: (host: HostCalls) => Promise<void>;
}

/** Phases in which a machine has processes. */
const living: ReadonlySet<MachinePhase> = new Set([
  MachinePhase.STARTING,
  MachinePhase.RUNNING,
  MachinePhase.SUSPENDING,
  MachinePhase.RESUMING,
]);

export class HostComparison {
  readonly #needs: HostComparisonDependencies;
  readonly #stop = new AbortController();
  readonly #turns = new Turns(gatewayLimits.hostsComparedAtOnce);
  readonly #passes = new Set<Promise<void>>();
  #regularly: Promise<void> | undefined;

  constructor(needs: HostComparisonDependencies) {
    this.#needs = needs;
  }

  start(): void {
    this.#regularly = this.#checkRegularly();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await Promise.all([this.#regularly, ...this.#passes]);
  }

  /** The host's listing of its machines is complete. */
  synced(hostId: string): void {
    const { fleet } = this.#needs;
    this.#pass(hostId, async () => {
      await this.#needs.pushKeys(fleet.calls(hostId));
      await this.#checkAll(hostId);
    });
  }

  /** This gateway now watches the host, or the host's row has changed. */
  gained(hostId: string): void {
    this.#pass(hostId, () => this.#checkAll(hostId));
  }

  /** Resolves when no host is being compared; for tests. */
  async settle(): Promise<void> {
    while (this.#passes.size > 0) await Promise.all(this.#passes);
  }

  #pass(hostId: string, body: () => Promise<void>): void {
    const pass = body()
      .catch((error: unknown) => {
        if (this.#stop.signal.aborted) return;
        const fields = { err: error, host_id: hostId };
        this.#needs.log.warn(fields, "comparison with the host's machines failed");
      })
      .finally(() => this.#passes.delete(pass));
    this.#passes.add(pass);
  }

  async #checkRegularly(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.#needs.clock.sleep(gatewayLimits.reconcileEveryMs, signal).catch(() => undefined);
      if (signal.aborted) return;
      const compared = this.#needs.fleet.ids().map((hostId) =>
        this.#compareAll(hostId).catch((error: unknown) => {
          const fields = { err: error, host_id: hostId };
          this.#needs.log.warn(fields, "the regular comparison with the host failed");
        }),
      );
      await Promise.all(compared);
    }
  }

  async #checkAll(hostId: string): Promise<void> {
    await this.#compareAll(hostId);
    if (this.#isWatched(hostId)) await this.#pushIdleLimits(hostId);
  }

  #isWatched(hostId: string): boolean {
    const { fleet, watches } = this.#needs;
    return !this.#stop.signal.aborted && fleet.isSyncedWith(hostId) && watches.isMine(hostId);
  }

  async #compareAll(hostId: string): Promise<void> {
    const release = await this.#turns.enter();
    try {
      if (this.#isWatched(hostId)) await this.#compare(hostId);
    } finally {
      release();
    }
  }

  async #compare(hostId: string): Promise<void> {
    const { database, fleet, usage, reconciler } = this.#needs;
    const row = fleet.row(hostId);
    // List machines before records: a sandbox made in between then has a record without a machine, not a machine
    // without a record.
    const machines = await fleet.calls(hostId).list(this.#call());
    const records = new Map((await database.sandboxes.ofHost(hostId)).map((one) => [one.id, one]));
    // A host says nothing of the time that sandboxes of other hosts ran.
    await usage.compare(machines.filter(({ sandboxId }) => records.has(sandboxId)));
    if (row?.awaitsAdmission === true) await this.#admit(row, machines, records);
    const underWay = new Set((await database.operations.ofHost(hostId)).map((one) => one.sandboxId));
    const found = new Map(machines.map((one) => [one.sandboxId, one]));
    const differing = [...new Set([...found.keys(), ...records.keys()])].filter((id) => {
      const record = records.get(id);
      return record === undefined || underWay.has(id) || isDue(record, found.get(id));
    });
    await Promise.all(differing.map((id) => reconciler.check(hostId, id)));
  }

  async #admit(
    row: { id: string; generation: number },
    machines: readonly Machine[],
    records: ReadonlyMap<string, SandboxRecord>,
  ): Promise<void> {
    const { database, fleet, log, reconciler } = this.#needs;
    const { orphans } = this.#needs;
    const strangers = machines.filter(({ sandboxId }) => !records.has(sandboxId));
    await Promise.all(strangers.map(({ sandboxId }) => reconciler.check(row.id, sandboxId)));
    const own = machines.filter(
      (one) => mayGoOn(one, records.get(one.sandboxId)) || orphans.isKept(row.id, one.sandboxId),
    );
    await fleet.calls(row.id).admit(
      own.map(({ sandboxId }) => sandboxId),
      this.#call(),
    );
    if (!(await database.hosts.admitted(row))) return;
    log.warn({ host_id: row.id, machines: own.length }, "a host that was lost is back");
    await fleet.refresh();
  }

  /** Sends all idle limits: the host may have missed a change while the host or the gateway was down. */
  async #pushIdleLimits(hostId: string): Promise<void> {
    const { database, fleet, log } = this.#needs;
    const limited = (await database.sandboxes.ofHost(hostId)).filter(
      (record) =>
        record.idleSuspendSeconds > 0 && fleet.machine(record.id, hostId)?.phase === MachinePhase.RUNNING,
    );
    const host = fleet.calls(hostId);
    // In parallel, because a busy machine takes its limit only after its current operation.
    const pushes = limited.map(({ id, idleSuspendSeconds }) =>
      host.update(id, { idleSuspendSeconds }, this.#call()).catch((error: unknown) => {
        log.warn({ err: error, sandbox_id: id }, "the idle limit could not be set");
      }),
    );
    await Promise.all(pushes);
  }

  #call(): CallContext {
    return { signal: this.#stop.signal, requestId: "" };
  }
}

/**
 * Whether a machine of a host that was lost may go on. Its owner knows a durable suspended sandbox as suspended, and may resume it on
 * another host at any moment: a machine of it that runs was resumed unheard before the loss, and the image in storage counts.
 */
function mayGoOn({ phase }: Machine, record: SandboxRecord | undefined): boolean {
  return record !== undefined && !(isDurable(record) && living.has(phase));
}
