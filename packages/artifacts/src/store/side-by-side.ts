/**
 * Runs independent steps of set-up at the same time. Shown as one step whose details name both; their lines come in any order.
 */
import type { Progress } from "@cloche/base";

/** A step that took at least this long gets a line with its time. */
const longMs = 2_000;

type Task<T> = (progress: Progress) => Promise<T>;

/**
 * Answers the result of each task. If one fails, the other still runs to its end, so that the next start need not repeat it; then
 * the first failure is thrown.
 */
export async function sideBySide<A, B>(
  progress: Progress,
  name: string,
  tasks: readonly [Task<A>, Task<B>],
  nowMs: () => number = () => performance.now(),
): Promise<[A, B]> {
  progress(name);
  let underWay: number = tasks.length;
  const follow = async <T>(task: Task<T>): Promise<T> => {
    const reporter = reporterOf((text) => progress(name, text), nowMs);
    try {
      const result = await task(reporter.step);
      reporter.end();
      return result;
    } catch (error) {
      // The other may take another minute: the operator can begin with the repair.
      if (underWay > 1) progress(name, `${firstLine(error)}; what runs beside it is finished first`);
      throw error;
    } finally {
      underWay -= 1;
    }
  };
  const [a, b] = await Promise.allSettled([follow(tasks[0]), follow(tasks[1])]);
  if (a.status === "rejected") throw a.reason;
  if (b.status === "rejected") throw b.reason;
  return [a.value, b.value];
}

const firstLine = (error: unknown): string =>
  String(error instanceof Error ? error.message : error).split("\n")[0] ?? "";

/** Prints the steps of one task as lines, with the time of long ones. */
function reporterOf(print: (text: string) => void, nowMs: () => number) {
  let current: string | undefined;
  let startedMs = 0;
  const end = (): void => {
    const tookMs = nowMs() - startedMs;
    if (current !== undefined && tookMs >= longMs) print(`${current} took ${(tookMs / 1000).toFixed(0)} s`);
    current = undefined;
  };
  const step: Progress = (name, detail) => {
    if (name !== current) {
      end();
      current = name;
      startedMs = nowMs();
      if (detail === undefined) print(name);
    }
    if (detail !== undefined) print(`${name}: ${detail}`);
  };
  return { step, end };
}
