/**
 * The hosts of this gateway. In one process: a single host that is always there, whatever id a record names. In a
 * cluster: the hosts of the table `hosts`, read every 2 s and whenever a host refused a call as meant for another
 * generation.
 *
 *   unknown ──registered──▶ followed ──lost, or its row is gone──▶ unknown
 *                             │  ▲
 *                             └──┘ new address or generation: connected anew; known machines stay until the new listing
 *
 * A host that does not answer delays only calls to that host. Owns the connections and the last reports of the hosts,
 * nothing that must survive a crash.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { Clock, Log } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { AuditEvent, Machine, ReadyMachine } from "@cloche/protocol/host";
import type { HostRecord, Hosts } from "../database/hosts.ts";
import type { CallContext, HostCalls, HostClient } from "./host-calls.ts";
import { gatewayLimits } from "../limits.ts";
import { FleetHost, type HostConnector } from "./fleet-host.ts";

export type FleetSource = { id: string; client: HostClient } | { hosts: Hosts; connect: HostConnector };

/** Reports of the hosts: those of MachineListener, with the host's id. */
export interface FleetListener {
  synced(hostId: string): void;
  changed(hostId: string, sandboxId: string): void;
  idle(hostId: string, sandboxId: string): void;
  ready(hostId: string, machines: readonly ReadyMachine[]): void;
  audit(hostId: string, event: AuditEvent): void;
  /** The host's row has changed or is gone. */
  hostChanged(hostId: string): void;
}

/** What is known of a host's machines. */
export type HostMachines = Pick<HostMachinesOfView, "get" | "note" | "forget">;
type HostMachinesOfView = FleetHost["view"];

const noMachines: HostMachines = { get: () => undefined, note() {}, forget() {} };

export class Fleet {
  /** True: the hosts are other computers, which come and go, and edges reach their agents by relays. */
  readonly isCluster: boolean;
  readonly #source: FleetSource;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  readonly #hosts = new Map<string, FleetHost>();
  /** By id, as last read; empty in one process. */
  #rows: ReadonlyMap<string, HostRecord> = new Map();
  #listener: FleetListener | undefined;
  #following: Promise<void> | undefined;
  #refreshing: Promise<void> | undefined;
  readonly #having = new Map<string, Set<string>>();
  readonly #closing = new Set<Promise<void>>();
  #turn = 0;

  constructor(source: FleetSource, clock: Clock, log: Log) {
    this.#source = source;
    this.#clock = clock;
    this.#log = log;
    this.isCluster = "hosts" in source;
    if ("client" in source) {
      const connection = { client: source.client, close() {} };
      this.#hosts.set(source.id, new FleetHost(source.id, connection, this.#needs));
    }
  }

  /** The calls to a host; throws `unavailable` for a host that is unknown or lost. */
  calls(hostId: string): HostCalls {
    return this.#find(hostId).calls;
  }

  /** The calls to some open host, another one each time. Throws `unavailable` when there is none. */
  any(): HostCalls {
    const [only] = this.#hosts.values();
    if (!this.isCluster && only !== undefined) return only.calls;
    const open = [...this.#hosts.values()].filter(({ row, view }) => view.isSynced && isOpen(row));
    this.#turn += 1;
    const chosen = open[this.#turn % Math.max(1, open.length)];
    if (chosen === undefined) throw noHost("no host of the cluster can be reached");
    return chosen.calls;
  }

  /** Ids of the hosts that can be called. */
  ids(): string[] {
    return [...this.#hosts.keys()];
  }

  /** By id, every host that ever registered, lost hosts too; empty in one process. A new map after each read. */
  rows(): ReadonlyMap<string, HostRecord> {
    return this.#rows;
  }

  row(hostId: string): HostRecord | undefined {
    return this.#rows.get(hostId);
  }

  /** Runtimes of the hosts that take new machines; the default of the first host comes first. */
  runtimes(): string[] {
    return [...new Set([...this.#rows.values()].filter(isOpen).flatMap(({ runtimes }) => runtimes))];
  }

  /** Whether a gateway declared it lost. */
  isLost(hostId: string): boolean {
    return this.#rows.get(hostId)?.isLost === true;
  }

  /** The host's address for edges, host:port; empty: the host is in this process, or lost, or unknown. */
  addressOf(hostId: string): string {
    const row = this.#rows.get(hostId);
    return row === undefined || row.isLost ? "" : row.address;
  }

  /** Ids of the hosts that can make machines of the template without fetching anything; none where all can. */
  having(template: string): ReadonlySet<string> {
    const ids = this.#having.get(template) ?? new Set();
    return ids.size < this.#hosts.size ? ids : new Set();
  }

  machine(sandboxId: string, hostId: string): Machine | undefined {
    return this.machinesOf(hostId).get(sandboxId);
  }

  machinesOf(hostId: string): HostMachines {
    return this.#known(hostId)?.view ?? noMachines;
  }

  /** Every machine of the host that is known. */
  all(hostId: string): Iterable<Machine> {
    return this.#known(hostId)?.view.all() ?? [];
  }

  /** Whether all machines of the host are known now. */
  isSyncedWith(hostId: string): boolean {
    return this.#known(hostId)?.view.isSynced ?? false;
  }

  /** Whether enough is known to serve: the machines of one host, or that there is none. */
  get isSynced(): boolean {
    const hosts = [...this.#hosts.values()];
    return (this.isCluster && hosts.length === 0) || hosts.some(({ view }) => view.isSynced);
  }

  /** Calls every host. Throws only in one process; in a cluster a host that missed it is told when reached again. */
  async everywhere(what: string, call: (host: HostCalls) => Promise<void>): Promise<void> {
    const calls = [...this.#hosts.values()].map(async ({ id, calls: host }) => {
      try {
        await call(host);
      } catch (error) {
        if (!this.isCluster) throw error;
        this.#log.warn({ err: error, host_id: id }, `${what} not sent to a host`);
      }
    });
    await Promise.all(calls);
  }

  async start(listener: FleetListener): Promise<void> {
    this.#listener = listener;
    for (const host of this.#hosts.values()) this.#listen(host);
    if (!this.isCluster) return;
    await this.refresh();
    this.#following = this.#follow();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await Promise.all([this.#following, this.#refreshing]);
    for (const host of this.#hosts.values()) this.#end(host);
    await Promise.all(this.#closing);
  }

  /**
   * Reads the rows again, and resolves when the hosts follow them. Never throws: after a failure the known rows stay.
   */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#refresh()
      .catch((error: unknown) => this.#log.warn({ err: error }, "the hosts could not be read"))
      .finally(() => (this.#refreshing = undefined));
    return this.#refreshing;
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.#clock.sleep(gatewayLimits.hostPollMs, signal).catch(() => undefined);
      if (!signal.aborted) await this.refresh();
    }
  }

  async #refresh(): Promise<void> {
    if (!("hosts" in this.#source)) return;
    const { hosts, connect } = this.#source;
    const before = this.#rows;
    const rows = new Map((await hosts.all()).map((row) => [row.id, row]));
    if (this.#stop.signal.aborted) return;
    this.#rows = rows;
    for (const [id, host] of this.#hosts) {
      const row = rows.get(id);
      if (row !== undefined && isThere(row)) host.follow(row, connect);
      else this.#drop(host);
    }
    let connected = 0;
    for (const row of rows.values()) {
      const { id, address } = row;
      if (isThere(row) && !this.#hosts.has(id)) {
        this.#add(new FleetHost(id, connect({ id, address }), this.#needs, row));
        connected += 1;
        // There may be a thousand hosts at a start: let other work run in between.
        if (connected % gatewayLimits.hostsConnectedAtOnce === 0) await nextTurn();
        if (this.#stop.signal.aborted) return;
      }
      if (differs(before.get(id), row)) this.#listener?.hostChanged(id);
    }
    for (const id of before.keys()) if (!rows.has(id)) this.#listener?.hostChanged(id);
  }

  #add(host: FleetHost): void {
    this.#hosts.set(host.id, host);
    this.#listen(host);
  }

  #drop(host: FleetHost): void {
    this.#hosts.delete(host.id);
    this.#has(host.id, []);
    this.#end(host);
    this.#listener?.ready(host.id, []);
  }

  #end(host: FleetHost): void {
    const closing = host.close().finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }

  #listen(host: FleetHost): void {
    const { id } = host;
    const listener = this.#listener;
    if (listener === undefined) return;
    const isCurrent = (): boolean => this.#hosts.get(id) === host;
    const notify = (call: () => void): void => (isCurrent() ? call() : undefined);
    host.start({
      synced: () =>
        notify(() => {
          if (this.isCluster) this.#ask(host);
          listener.synced(id);
        }),
      changed: (sandboxId) => notify(() => listener.changed(id, sandboxId)),
      idle: (sandboxId) => notify(() => listener.idle(id, sandboxId)),
      ready: (machines) => notify(() => listener.ready(id, machines)),
      audit: (event) => notify(() => listener.audit(id, event)),
    });
  }

  /** Asks which templates the host has, for placement. */
  #ask(host: FleetHost): void {
    const call: CallContext = { signal: this.#stop.signal, requestId: "" };
    host.calls.info(call).then(
      ({ templates }) => this.#has(host.id, templates),
      (error: unknown) =>
        this.#log.debug({ err: error, host_id: host.id }, "it is not known what the host has"),
    );
  }

  #has(hostId: string, templates: readonly string[]): void {
    for (const ids of this.#having.values()) ids.delete(hostId);
    for (const template of templates)
      this.#having.set(template, (this.#having.get(template) ?? new Set()).add(hostId));
    for (const [template, ids] of this.#having) if (ids.size === 0) this.#having.delete(template);
  }

  #find(hostId: string): FleetHost {
    const host = this.#known(hostId);
    if (host === undefined)
      throw noHost(`host ${JSON.stringify(hostId)} of the sandbox cannot be reached now`);
    return host;
  }

  #known(hostId: string): FleetHost | undefined {
    return this.isCluster ? this.#hosts.get(hostId) : this.#hosts.values().next().value;
  }

  get #needs() {
    return { clock: this.#clock, log: this.#log, refresh: () => this.refresh() };
  }
}

const isThere = ({ isLost, address }: HostRecord): boolean => !isLost && address !== "";

/** True: the host takes new machines. */
export const isOpen = (row: HostRecord | undefined): boolean =>
  row?.state === "open" && !row.isLost && !row.awaitsAdmission;

const differs = (before: HostRecord | undefined, after: HostRecord): boolean =>
  before === undefined ||
  before.address !== after.address ||
  before.isLost !== after.isLost ||
  before.state !== after.state ||
  before.awaitsAdmission !== after.awaitsAdmission ||
  before.generation !== after.generation;

const noHost = (message: string): ClocheError =>
  new ClocheError("unavailable", message, { retryAfterSeconds: gatewayLimits.noHostRetrySeconds });
