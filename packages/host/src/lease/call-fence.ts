/**
 * Refuses calls that a host of a cluster must not follow any more: those meant for another generation of it, those of an operation
 * older than the newest it has seen of the sandbox, and, while its lease is over, all that would change something.
 *
 * In memory alone. A new process registers with a new generation, so that no call of before reaches it: what the process before had
 * seen need not be known. Bounded: the fences of the `FENCES_MAX` sandboxes that were worked with last are remembered.
 */
import { ClocheError, type Fence, fenceOf, internalHeaders, isOlderFence } from "@cloche/protocol";

/** Asked before each call. Throws what the call is to be refused with. */
export interface CallGate {
  /** Of a call that only looks. */
  look(headers: Headers): void;
  /** Of a call that changes something, of `sandboxId` where it is one sandbox's. Ask the answer again when the call's turn comes. */
  change(headers: Headers, sandboxId?: string): () => void;
}

/** Of a host in no cluster: whoever holds its service in memory may call it. */
export const openGate: CallGate = { look: () => undefined, change: () => () => undefined };

/** What a fence knows of the lease. */
export interface FencedLease {
  /** Undefined: not registered yet. */
  readonly generation: number | undefined;
  /** Whether machines may run, at this very moment. */
  readonly isHeld: boolean;
}

/** A fence takes some 100 bytes. */
export const FENCES_MAX = 100_000;

export class CallFence implements CallGate {
  readonly #lease: FencedLease;
  /** The newest of each sandbox; the one worked with last at the end. */
  readonly #newest = new Map<string, Fence>();

  constructor(lease: FencedLease) {
    this.#lease = lease;
  }

  look(headers: Headers): void {
    const { generation } = this.#lease;
    if (generation === undefined)
      throw new ClocheError("unavailable", "this host has not registered with a gateway yet; try again");
    const meant = headers.get(internalHeaders.hostGeneration);
    if (meant === String(generation)) return;
    throw new ClocheError(
      "aborted",
      meant === null
        ? `the call must name the host's generation in ${internalHeaders.hostGeneration}`
        : `the call is for generation ${meant} of this host, which is generation ${generation}`,
    );
  }

  change(headers: Headers, sandboxId?: string): () => void {
    const fence = this.#fenceOf(headers);
    const check = (): void => {
      this.look(headers);
      requireLease(this.#lease);
      if (sandboxId !== undefined && fence !== undefined) this.#pass(sandboxId, fence);
    };
    check();
    return check;
  }

  #fenceOf(headers: Headers): Fence | undefined {
    const text = headers.get(internalHeaders.operation);
    if (text === null) return undefined;
    const fence = fenceOf(text);
    if (fence === undefined)
      throw new ClocheError("invalid_argument", `${internalHeaders.operation}: ${text} is no operation`);
    return fence;
  }

  #pass(sandboxId: string, fence: Fence): void {
    const newest = this.#newest.get(sandboxId);
    if (newest !== undefined && isOlderFence(fence, newest))
      throw new ClocheError("aborted", `a newer operation of sandbox ${sandboxId} has begun on this host`);
    this.#newest.delete(sandboxId);
    this.#newest.set(sandboxId, fence);
    const [oldest] = this.#newest.keys();
    if (this.#newest.size > FENCES_MAX && oldest !== undefined) this.#newest.delete(oldest);
  }
}

/** Until the host has started, what it would say of its machines is not true. */
export function startingGate(gate: CallGate, isTrue: () => boolean): CallGate {
  const requireStarted = (): void => {
    if (!isTrue()) throw new ClocheError("unavailable", "this host is starting; try again");
  };
  return {
    look(headers) {
      gate.look(headers);
      requireStarted();
    },
    change(headers, sandboxId) {
      const check = gate.change(headers, sandboxId);
      requireStarted();
      return check;
    },
  };
}

/** Throws where the machines stand still. */
export function requireLease(lease: Pick<FencedLease, "isHeld">): void {
  if (lease.isHeld) return;
  throw new ClocheError(
    "unavailable",
    "this host's lease is over and its machines stand still until a gateway has renewed it; try again",
  );
}
