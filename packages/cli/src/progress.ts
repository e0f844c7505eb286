import type { Terminal } from "./terminal.ts";

const redrawEveryMs = 100;
/** Back to the line's beginning, and what stands there taken away. */
const afresh = "\r\x1b[K";

/**
 * Does some work and tells meanwhile on standard error what is waited for and for how long; `phase` is asked at each drawing, so that it may tell of
 * a state that changes. The line stays with its final time, or is taken away where the work failed: the error says more.
 * For people: says nothing with --json, or where standard error is no terminal.
 */
export async function during<Answer>(
  { terminal, json }: { terminal: Terminal; json: boolean },
  phase: () => string,
  work: () => Promise<Answer>,
): Promise<Answer> {
  const { stderr } = terminal;
  if (json || stderr.isTTY !== true) return work();
  const beganAtMs = performance.now();
  const line = (): string => {
    const took = ` ${((performance.now() - beganAtMs) / 1_000).toFixed(1)} s`;
    // A line that wraps cannot be drawn over.
    return `${afresh}${phase().slice(0, (stderr.columns ?? 80) - took.length - 1)}${took}`;
  };
  stderr.write(line());
  const redrawing = setInterval(() => stderr.write(line()), redrawEveryMs);
  try {
    const answer = await work();
    stderr.write(`${line()}\n`);
    return answer;
  } catch (error) {
    stderr.write(afresh);
    throw error;
  } finally {
    clearInterval(redrawing);
  }
}
