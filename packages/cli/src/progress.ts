import type { Terminal } from "./terminal.ts";

const redrawEveryMs = 100;
const columnsUnsaid = 80;
const columnsMin = 20;
/** Back to the line's beginning, and what stands there taken away. */
const afresh = "\r\x1b[K";

type Shown = { terminal: Terminal; json: boolean };

/** Whether there is a person to tell. */
export const isShown = ({ terminal, json }: Shown): boolean => !json && terminal.stderr.isTTY === true;

/**
 * Does some work and tells meanwhile on standard error what is waited for and for how long; `phase` is asked at each drawing, so that it may tell of
 * a state that changes. The line stays with its final time, or is taken away where the work failed: the error says more.
 * For people: says nothing with --json, or where standard error is no terminal.
 */
export async function during<Answer>(
  run: Shown,
  phase: () => string,
  work: () => Promise<Answer>,
): Promise<Answer> {
  if (!isShown(run)) return work();
  const { stderr } = run.terminal;
  const beganAtMs = performance.now();
  const line = (): string => {
    const took = ` ${((performance.now() - beganAtMs) / 1_000).toFixed(1)} s`;
    // A line that wraps cannot be drawn over; some terminals say that they are 0 wide.
    const columns = Math.max(stderr.columns || columnsUnsaid, columnsMin);
    return `${afresh}${phase().slice(0, columns - took.length - 1)}${took}`;
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
