/**
 * Refuses calls that a host of a cluster may no longer carry out: calls for another generation of the host, calls of an operation
 * older than the newest seen for the sandbox, and, while the lease is over, every call that changes something.
 *
 * In memory only. A new process registers with a new generation, so that calls to the process before are refused and its memory is
 * not needed. Bounded: keeps the fences of the `fencesMax` sandboxes used last.
 */
import { ClocheError, type Fence, fenceOf, internalHeaders, isOlderFence } from "@cloche/protocol";

/** Checks each call before it is served. Throws the error of a call that is refused. */
export interface CallGate {
  /** Checks a call that only reads. */
  check(headers: Headers): void;
  /** Checks a call that changes something; `sandboxId` if it is about one. Call the returned check again when the call's turn comes. */
  change(headers: Headers, sandboxId?: string): () => void;
}

/** For a host in no cluster: it is called in the same process only, and every call is allowed. */
export const openGate: CallGate = { check: () => undefined, change: () => () => undefined };

/** The lease as a fence sees it. */
export interface FencedLease {
  /** Undefined: not registered yet. */
  readonly generation: number | undefined;
  /** Whether machines may run now. */
  readonly isHeld: boolean;
}

/** Fences kept; each takes some 100 bytes. */
export const fencesMax = 100_000;

export class CallFence implements CallGate {
  readonly #lease: FencedLease;
  /** The newest fence of each sandbox, in order of use: the last used at the end. */
  readonly #newest = new Map<string, Fence>();

  constructor(lease: FencedLease) {
    this.#lease = lease;
  }

  check(headers: Headers): void {
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
      this.check(headers);
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
    if (this.#newest.size > fencesMax && oldest !== undefined) this.#newest.delete(oldest);
  }
}

/** Refuses all calls until the host's answers about its machines are true (`isTrue`). */
export function startingGate(gate: CallGate, isTrue: () => boolean): CallGate {
  const requireStarted = (): void => {
    if (!isTrue()) throw new ClocheError("unavailable", "this host is starting; try again");
  };
  return {
    check(headers) {
      gate.check(headers);
      requireStarted();
    },
    change(headers, sandboxId) {
      const check = gate.change(headers, sandboxId);
      requireStarted();
      return check;
    },
  };
}

/** Throws unavailable if the lease is not held. */
export function requireLease(lease: Pick<FencedLease, "isHeld">): void {
  if (lease.isHeld) return;
  throw new ClocheError(
    "unavailable",
    "this host's lease is over and its machines stand still until a gateway has renewed it; try again",
  );
}
