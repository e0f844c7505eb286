/**
 * What belongs to the request that is being served, wherever in its course: the ids that logs and further calls carry, and, where an operator
 * asked for it, the steps of the operation with their times. Follows promises and callbacks by itself (AsyncLocalStorage).
 */
import { AsyncLocalStorage } from "node:async_hooks";

export interface RequestIds {
  requestId: string;
  /** A valid W3C traceparent, or empty. */
  traceparent: string;
}

/** One step of an operation. Steps lie within each other: those of depth 1 are parts of the depth 0 before them. */
export interface TraceStep {
  step: string;
  depth: number;
  /** Since the operation began. */
  at_ms: number;
  ms: number;
  failed?: true;
}

interface Trace {
  steps: TraceStep[];
  beganMs: number;
  isOver: boolean;
}
interface Context extends RequestIds {
  trace: Trace | undefined;
  depth: number;
}

const storage = new AsyncLocalStorage<Context>();
const none: Context = { requestId: "", traceparent: "", trace: undefined, depth: 0 };
const stepsPerTrace = 200;

export const requestIds = (): RequestIds => storage.getStore() ?? none;

/** Fields for a log line; those that are unknown are left out. */
export function logIds({ requestId, traceparent }: RequestIds = requestIds()): object {
  return {
    ...(requestId !== "" && { request_id: requestId }),
    ...(traceparent !== "" && { trace_id: traceparent.slice(3, 35) }),
  };
}

export function withRequestIds<T>(ids: RequestIds, body: () => T): T {
  return storage.run({ ...none, ...ids }, body);
}

/** Runs an operation and answers its steps too, in the order in which they began; `report` hears of them when it failed as well. */
export async function traced<T>(
  body: () => Promise<T>,
  report: (steps: readonly TraceStep[]) => void,
): Promise<T> {
  const trace: Trace = { steps: [], beganMs: performance.now(), isOver: false };
  try {
    return await storage.run({ ...none, ...requestIds(), trace, depth: 0 }, body);
  } finally {
    trace.isOver = true;
    report(trace.steps.map((one) => ({ ...one })));
  }
}

/** A part of the operation under way. Costs nothing where no trace is taken. */
export async function step<T>(name: string, body: () => Promise<T>): Promise<T> {
  const context = storage.getStore();
  const trace = context?.trace;
  if (context === undefined || trace === undefined || trace.isOver) return await body();
  const beganMs = performance.now();
  const one: TraceStep = { step: name, depth: context.depth, at_ms: tenths(beganMs - trace.beganMs), ms: 0 };
  if (trace.steps.length < stepsPerTrace) trace.steps.push(one);
  try {
    return await storage.run({ ...context, depth: context.depth + 1 }, body);
  } catch (error) {
    one.failed = true;
    throw error;
  } finally {
    one.ms = tenths(performance.now() - beganMs);
  }
}

/** For work that a request sets going but that is none of its own. */
export const apart = <T>(body: () => T): T => storage.run(none, body);

const tenths = (ms: number): number => Math.round(ms * 10) / 10;
