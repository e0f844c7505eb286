// Steps of set-up that do not need each other, at the same time. For whoever watches they are one step, whose details name
// them: lines of both come in any order.
import type { Progress } from "./step.ts";

/** From how long on it is said what one of them took. */
const LONG_MS = 2_000;

type Task<T> = (progress: Progress) => Promise<T>;

/**
 * Answers what each of them answered. When one fails the others go on to their end, so that the next start need not repeat
 * them; the first failure is thrown then.
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
    const tell = teller((text) => progress(name, text), nowMs);
    try {
      const result = await task(tell.step);
      tell.end();
      return result;
    } catch (error) {
      // The other may go on for a minute: whoever watches can begin with the repair.
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

/** Turns the steps of one task into lines, with what each took when that was long. */
function teller(say: (text: string) => void, nowMs: () => number) {
  let current: string | undefined;
  let startedMs = 0;
  const end = (): void => {
    const tookMs = nowMs() - startedMs;
    if (current !== undefined && tookMs >= LONG_MS) say(`${current} took ${(tookMs / 1000).toFixed(0)} s`);
    current = undefined;
  };
  const step: Progress = (name, detail) => {
    if (name !== current) {
      end();
      current = name;
      startedMs = nowMs();
      if (detail === undefined) say(name);
    }
    if (detail !== undefined) say(`${name}: ${detail}`);
  };
  return { step, end };
}
