import { printable } from "@cloche/protocol";
import type { Terminal } from "./terminal.ts";

const redrawEveryMs = 100;
const columnsDefault = 80;
const columnsMin = 20;
/** Moves to the beginning of the line and clears it. */
const afresh = "\r\x1b[K";

type Shown = { terminal: Terminal; json: boolean };

/** Whether progress is shown: standard error is a terminal, and --json was not given. */
export const isShown = ({ terminal, json }: Shown): boolean => !json && terminal.stderr.isTTY === true;

/**
 * Shows on standard error, while `work` runs, its phase and its duration. `phase` is called at each drawing, so that it may show a changing
 * state. The line stays with its final time, or is removed if the work failed, since the error says more. Prints nothing with --json or if
 * standard error is no terminal.
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
    // A wrapped line cannot be redrawn. Some terminals say that their width is 0.
    const columns = Math.max(stderr.columns || columnsDefault, columnsMin);
    return `${afresh}${printable(phase()).slice(0, columns - took.length - 1)}${took}`;
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
