/** Prints the progress of a start to the terminal: one line for each step, with its duration if it was long. */
export interface ProgressPrinter {
  step(step: string, detail?: string): void;
  done(): void;
}

export function terminalProgress(
  onStep: (step: string, ms: number) => void = () => undefined,
  write: (text: string) => void = (text) => process.stderr.write(text),
  nowMs: () => number = () => performance.now(),
): ProgressPrinter {
  let current: string | undefined;
  let startedMs = 0;
  const finish = (): void => {
    if (current === undefined) return;
    const seconds = (nowMs() - startedMs) / 1000;
    onStep(current, Math.round(seconds * 1000));
    if (seconds >= 2) write(`    ${current} took ${seconds.toFixed(0)} s\n`);
    current = undefined;
  };
  return {
    step(step, detail) {
      if (step !== current) {
        finish();
        current = step;
        startedMs = nowMs();
        write(`==> ${step}${detail === undefined ? "" : `: ${detail}`}\n`);
      } else if (detail !== undefined) {
        write(`    ${detail}\n`);
      }
    },
    done: finish,
  };
}
