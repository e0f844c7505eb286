/**
 * The context of the request that is being served: the ids for logs and further calls, and, if the operator asked for
 * it, the steps of the operation with their times. It follows promises and callbacks by itself (AsyncLocalStorage).
 */
import { AsyncLocalStorage } from "node:async_hooks";

export interface RequestIds {
  requestId: string;
  /** A valid W3C traceparent, or empty. */
  traceparent: string;
}

/** One step of an operation. Steps are nested: a step of depth 1 is a part of the last step of depth 0 before it. */
export interface TraceStep {
  step: string;
  depth: number;
  /** Milliseconds since the operation began. */
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

/** Fields for a log line, without unknown ids. */
export function logIds({ requestId, traceparent }: RequestIds = requestIds()): object {
  return {
    ...(requestId !== "" && { request_id: requestId }),
    ...(traceparent !== "" && { trace_id: traceparent.slice(3, 35) }),
  };
}

export function withRequestIds<T>(ids: RequestIds, body: () => T): T {
  return storage.run({ ...none, ...ids }, body);
}

/** Runs an operation and reports its steps, in the order in which they began, also when the operation failed. */
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

/** Runs `body` as a step of the operation under way. Costs nothing when no trace is taken. */
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

/** Runs `body` outside the request's context: work that a request starts but that is not a part of it. */
export const apart = <T>(body: () => T): T => storage.run(none, body);

const tenths = (ms: number): number => Math.round(ms * 10) / 10;
