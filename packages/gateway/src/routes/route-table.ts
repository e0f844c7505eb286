/**
 * The routes for edges: where each sandbox's agent is, and whether requests may be sent to it. The table is kept in
 * memory, made from records and machines, and each change is sent to each watcher. A watcher that reads slowly gets
 * only the newest route of each sandbox, so its memory is bounded by the number of sandboxes.
 */
import { create, equals } from "@bufbuild/protobuf";
import { allPorts, type PublicPorts, type SandboxState } from "@cloche/protocol";
import { type Route, RouteSchema } from "@cloche/protocol/edge";
import { MachinePhase } from "@cloche/protocol/host";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";

/** The parts of a record that its route needs. */
interface Listed {
  teamId: string;
  state: SandboxState;
  hostId: string;
  /** Of SUSPENDED and ERROR. */
  why: string;
  autoResume: boolean;
  publicPorts: PublicPorts;
  generation: number;
  linkKey: Uint8Array;
}

/** States on the way to RUNNING. */
const coming: ReadonlySet<SandboxState> = new Set(["SANDBOX_STATE_CREATING", "SANDBOX_STATE_RESUMING"]);
const explained: ReadonlySet<SandboxState> = new Set(["SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_ERROR"]);

export type RouteChange =
  | { kind: "set"; route: Route }
  | { kind: "remove"; sandboxId: string }
  | { kind: "keys" };

/** Where machines are. */
export type RouteHosts = Pick<Fleet, "machine" | "addressOf">;

export class RouteTable {
  readonly #hosts: RouteHosts;
  readonly #linkKeyOf: (sandboxId: string) => Uint8Array;
  readonly #listed = new Map<string, Listed>();
  readonly #ofHost = new Map<string, Set<string>>();
  readonly #counts = new Map<SandboxState, number>();
  readonly #routes = new Map<string, Route>();
  readonly #watchers = new Set<RouteWatcher>();

  /** `linkKeyOf`: the key that signs links to a sandbox's files. */
  constructor(hosts: RouteHosts, linkKeyOf: (sandboxId: string) => Uint8Array) {
    this.#hosts = hosts;
    this.#linkKeyOf = linkKeyOf;
  }

  get(sandboxId: string): Route | undefined {
    return this.#routes.get(sandboxId);
  }

  all(): IterableIterator<Route> {
    return this.#routes.values();
  }

  /** A record is new or has changed; `undefined`: it is gone. */
  recordChanged(sandboxId: string, record: SandboxRecord | undefined): void {
    if (record === undefined) {
      this.#list(sandboxId, undefined);
      if (this.#routes.delete(sandboxId)) this.#notify({ kind: "remove", sandboxId });
      return;
    }
    const known = this.#listed.get(sandboxId);
    if (known !== undefined && known.generation > record.generation) return;
    const { teamId, state, hostId, publicPorts, generation } = record;
    // Requests wait for a sandbox that is being moved.
    const autoResume = record.autoResume || record.isMoving;
    const linkKey = known?.linkKey ?? this.#linkKeyOf(sandboxId);
    const why = explained.has(state) ? record.errorMessage : "";
    this.#list(sandboxId, { teamId, state, hostId, why, autoResume, publicPorts, generation, linkKey });
    this.machineChanged(sandboxId);
  }

  /** How many sandboxes there are in each state, of all teams. */
  countByState(): ReadonlyMap<SandboxState, number> {
    return this.#counts;
  }

  /** Ids of all known records. */
  ids(): IterableIterator<string> {
    return this.#listed.keys();
  }

  /** Whether the sandbox is known to be on another host: what this one reports of it counts for nothing. */
  isElsewhere(sandboxId: string, hostId: string): boolean {
    const known = this.#listed.get(sandboxId);
    return known !== undefined && known.hostId !== hostId;
  }

  machineChanged(sandboxId: string): void {
    const listed = this.#listed.get(sandboxId);
    if (listed === undefined) return;
    const route = routeOf(sandboxId, listed, this.#hosts);
    const known = this.#routes.get(sandboxId);
    if (known !== undefined && equals(RouteSchema, known, route)) return;
    this.#routes.set(sandboxId, route);
    this.#notify({ kind: "set", route });
  }

  /** The host's machines were listed anew, or its row has changed. */
  hostChanged(hostId: string): void {
    for (const sandboxId of this.#ofHost.get(hostId) ?? []) this.machineChanged(sandboxId);
  }

  #list(sandboxId: string, listed: Listed | undefined): void {
    const known = this.#listed.get(sandboxId);
    const before = known?.hostId;
    if (known !== undefined) this.#count(known.state, -1);
    if (listed !== undefined) this.#count(listed.state, 1);
    if (listed === undefined) this.#listed.delete(sandboxId);
    else this.#listed.set(sandboxId, listed);
    if (before === listed?.hostId) return;
    if (before !== undefined) {
      const ids = this.#ofHost.get(before);
      ids?.delete(sandboxId);
      if (ids?.size === 0) this.#ofHost.delete(before);
    }
    if (listed === undefined) return;
    const ids = this.#ofHost.get(listed.hostId) ?? new Set();
    this.#ofHost.set(listed.hostId, ids.add(sandboxId));
  }

  #count(state: SandboxState, more: number): void {
    this.#counts.set(state, (this.#counts.get(state) ?? 0) + more);
  }

  keysChanged(): void {
    this.#notify({ kind: "keys" });
  }

  /** Yields every change from now on, until `signal` aborts. */
  watch(signal: AbortSignal): RouteWatcher {
    const watcher = new RouteWatcher();
    this.#watchers.add(watcher);
    const end = (): void => {
      this.#watchers.delete(watcher);
      watcher.close();
    };
    if (signal.aborted) end();
    else signal.addEventListener("abort", end, { once: true });
    return watcher;
  }

  /** Resolves when every watcher has taken all changes until now. */
  async delivered(): Promise<void> {
    await Promise.all([...this.#watchers].map((watcher) => watcher.drained()));
  }

  #notify(change: RouteChange): void {
    for (const watcher of this.#watchers) watcher.push(change);
  }
}

function routeOf(sandboxId: string, listed: Listed, hosts: RouteHosts): Route {
  const machine = hosts.machine(sandboxId, listed.hostId);
  const runs = machine?.phase === MachinePhase.RUNNING;
  return create(RouteSchema, {
    sandboxId,
    teamId: listed.teamId,
    state: listed.state,
    why: listed.why,
    hostId: listed.hostId,
    hostAddress: hosts.addressOf(listed.hostId),
    agentHost: machine?.agentHost ?? "",
    agentPort: machine?.agentPort ?? 0,
    autoResume: listed.autoResume,
    publicPorts: listed.publicPorts.filter((port) => port !== allPorts),
    allPortsPublic: listed.publicPorts.some((port) => port === allPorts),
    // RUNNING without a running machine lasts only until the reconciler has compared them.
    busy: machine?.busy === true || (listed.state === "SANDBOX_STATE_RUNNING" && !runs),
    epoch: machine?.epoch ?? 0n,
    isAhead: runs && coming.has(listed.state),
    channelKey: machine?.channelKey ?? new Uint8Array(),
    linkKey: listed.linkKey,
  });
}

/** One edge's stream: the newest change of each sandbox, in the order of the changes. */
export class RouteWatcher implements AsyncIterableIterator<RouteChange> {
  readonly #pending = new Map<string, RouteChange>();
  #wake: (() => void) | undefined;
  #drained: (() => void)[] = [];
  #isClosed = false;
  #isWaiting = false;

  push(change: RouteChange): void {
    const key =
      change.kind === "keys" ? "" : change.kind === "set" ? change.route.sandboxId : change.sandboxId;
    this.#pending.delete(key);
    this.#pending.set(key, change);
    this.#wake?.();
  }

  close(): void {
    this.#isClosed = true;
    this.#wake?.();
    this.#release();
  }

  /** Resolves when the reader asks for more after the last change, and so has handled all changes before. */
  drained(): Promise<void> {
    if (this.#isClosed || (this.#pending.size === 0 && this.#isWaiting)) return Promise.resolve();
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  async next(): Promise<IteratorResult<RouteChange>> {
    while (!this.#isClosed) {
      const first = this.#pending.entries().next();
      if (!first.done) {
        const [key, change] = first.value;
        this.#pending.delete(key);
        return { done: false, value: change };
      }
      this.#isWaiting = true;
      this.#release();
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      this.#wake = undefined;
      this.#isWaiting = false;
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<RouteChange>> {
    this.close();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #release(): void {
    const waiting = this.#drained;
    this.#drained = [];
    for (const resolve of waiting) resolve();
  }
}
