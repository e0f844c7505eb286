/**
 * Takes and renews this host's lease through any gateway.
 *
 *   new ──RegisterHost──▶ held ──RenewHost every renew_every_ms──▶ held
 *    ▲                     │ no gateway answers until untilMs: over ──a late renewal──▶ held
 *    └──a renewal is refused: a newer generation, or declared lost──┘
 *
 * A term is counted from the moment its call was sent, by this computer's boot clock: neither a slow answer nor a stop of the
 * computer or this process makes it longer. It ends `freezeEarlyMs` before the gateways' term, so that machines are frozen
 * before they may be started elsewhere. Owns nothing that must survive: a new process registers with a new generation.
 */
import { type Clock, type Log } from "@cloche/base";
import { type HostLease, type HostRegistryService, HostState } from "@cloche/protocol/host-registry";
import { type Client, Code, ConnectError } from "@connectrpc/connect";

export type RegistryClient = Pick<
  Client<typeof HostRegistryService>,
  "registerHost" | "renewHost" | "leaveHost"
>;

/** What the host tells the gateways about itself. */
export interface HostDescription {
  /** As in its certificate. */
  hostId: string;
  /** host:port that gateways and edges reach it on. */
  address: string;
  cpuClass: string;
  capacityMemoryMb: number;
  /** Release of the host's program. */
  version: string;
  /** The first is the default. */
  runtimes: readonly string[];
}

/** `cordoned`: takes no new machines. `draining`: also moves its machines to other hosts. */
export type OperatorState = "open" | "cordoned" | "draining";

export interface Term {
  generation: number;
  /** By the boot clock: from then on machines are frozen. */
  untilMs: number;
  operatorState: OperatorState;
}

export interface LeaseKeeperParts {
  description: HostDescription;
  /** At least one, tried in this order. The gateway that answered last is asked first. */
  gateways: readonly RegistryClient[];
  clock: Pick<Clock, "sleep">;
  /** This computer's boot clock, milliseconds. */
  bootMs: () => number;
  log: Log;
  /** Called for each new generation. */
  registered(term: Term, wasLost: boolean): void;
  renewed(term: Term): void;
}

/** Time for a gateway to answer; then the next gateway is asked. */
export const callMs = 2_000;
/** Pause after a round in which no gateway answered. */
export const retryMs = 1_000;
/** Of a lease of 15 s, machines run for 12 s. */
export const freezeEarlyMs = 3_000;
const logEveryMs = 30_000;

export class LeaseKeeper {
  readonly #parts: LeaseKeeperParts;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #generation: number | undefined;
  #gateway = 0;
  /** Failed calls since the last good answer. */
  #failures = 0;
  #reportedAtMs = Number.NEGATIVE_INFINITY;

  constructor(parts: LeaseKeeperParts) {
    this.#parts = parts;
  }

  start(): void {
    this.#running ??= this.#keep();
  }

  /** Ends the renewals; the lease runs out by itself. Repeatable. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("the host is stopping"));
    await this.#running;
  }

  /**
   * Use instead of `stop` if the machines keep running without this program: the host is not declared lost for `awayMs` (at most
   * 15 minutes). Answers when the machines must freeze, by the boot clock; undefined if no gateway agreed: the last term stays.
   */
  async leave(awayMs: number): Promise<number | undefined> {
    await this.stop();
    const generation = this.#generation;
    if (generation === undefined) return undefined;
    const { description, gateways, log } = this.#parts;
    const request = { hostId: description.hostId, generation: BigInt(generation), awayMs };
    for (const _ of gateways) {
      try {
        const { sentMs } = await this.#call((gateway, options) => gateway.leaveHost(request, options));
        return sentMs + awayMs - freezeEarlyMs;
      } catch (err) {
        log.warn({ err }, "a gateway did not hear that this host leaves");
        this.#gateway += 1;
      }
    }
    return undefined;
  }

  async #keep(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const waitMs = await this.#round().catch((error: unknown) => this.#afterFailure(error));
      await this.#parts.clock.sleep(waitMs, signal).catch(() => undefined);
    }
  }

  /** Answers the wait before the next round, in milliseconds. */
  async #round(): Promise<number> {
    const { bootMs, renewed, log } = this.#parts;
    const generation = this.#generation;
    if (generation === undefined) return this.#register(false);
    const request = { hostId: this.#parts.description.hostId, generation: BigInt(generation) };
    try {
      const { answer, sentMs } = await this.#call((gateway, options) => gateway.renewHost(request, options));
      renewed(termOf(answer, sentMs));
      return Math.max(0, sentMs + answer.renewEveryMs - bootMs());
    } catch (error) {
      if (ConnectError.from(error).code !== Code.FailedPrecondition) throw error;
      log.warn({ err: error, generation }, "this host's lease is no longer its own; it registers again");
      return this.#register(true);
    }
  }

  async #register(wasRefused: boolean): Promise<number> {
    const { description, bootMs, registered, log } = this.#parts;
    const { capacityMemoryMb, runtimes, ...rest } = description;
    const request = {
      ...rest,
      capacityMemoryMb: BigInt(capacityMemoryMb),
      runtimes: [...runtimes],
    };
    const { answer, sentMs } = await this.#call((gateway, options) => gateway.registerHost(request, options));
    const term = termOf(answer, sentMs);
    this.#generation = term.generation;
    if (wasRefused && !answer.wasLost)
      log.error(
        { host_id: description.hostId },
        "another process registered as this host: if it repeats, two computers have the same CLOCHE_NODE_ID",
      );
    registered(term, answer.wasLost);
    return Math.max(0, sentMs + answer.renewEveryMs - bootMs());
  }

  /** Answers the wait before the next gateway: none, or a pause when all were asked. */
  #afterFailure(error: unknown): number {
    const { gateways, bootMs, log } = this.#parts;
    this.#gateway += 1;
    this.#failures += 1;
    const nowMs = bootMs();
    if (!this.#stop.signal.aborted && nowMs - this.#reportedAtMs >= logEveryMs) {
      this.#reportedAtMs = nowMs;
      log.warn({ err: error, failures: this.#failures }, "a gateway did not renew this host's lease");
    }
    return this.#failures % gateways.length === 0 ? retryMs : 0;
  }

  /** `sentMs`: the time just before the call was sent. Throws the gateway's error, or DeadlineExceeded after `callMs`. */
  async #call<Answer>(
    send: (gateway: RegistryClient, options: { signal: AbortSignal }) => Promise<Answer>,
  ): Promise<{ answer: Answer; sentMs: number }> {
    const { gateways, clock, bootMs } = this.#parts;
    const gateway = gateways[this.#gateway % gateways.length];
    if (gateway === undefined) throw new Error("no gateway is configured");
    const over = new AbortController();
    const late = clock.sleep(callMs, over.signal).then(() => {
      throw new ConnectError(`no answer within ${callMs} ms`, Code.DeadlineExceeded);
    });
    late.catch(() => undefined);
    const sentMs = bootMs();
    try {
      const answer = await Promise.race([send(gateway, { signal: over.signal }), late]);
      this.#failures = 0;
      this.#reportedAtMs = Number.NEGATIVE_INFINITY;
      return { answer, sentMs };
    } finally {
      over.abort(new Error("the call is over"));
    }
  }
}

function termOf({ generation, validMs, state }: HostLease, sentMs: number): Term {
  const untilMs = sentMs + Math.max(0, validMs - freezeEarlyMs);
  return { generation: Number(generation), untilMs, operatorState: operatorStates[state] };
}

const operatorStates: Record<HostState, OperatorState> = {
  [HostState.UNSPECIFIED]: "open",
  [HostState.OPEN]: "open",
  [HostState.CORDONED]: "cordoned",
  [HostState.DRAINING]: "draining",
};
