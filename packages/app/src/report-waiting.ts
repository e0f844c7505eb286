const checkMs = 500;

/** Prints what a stop waits for, whenever that changes, until the returned function is called. */
export function reportWaiting(read: () => Promise<string | undefined>): () => void {
  let reported: string | undefined;
  let isChecking = false;
  const check = async (): Promise<void> => {
    if (isChecking) return;
    isChecking = true;
    const waiting = await read().catch(() => undefined);
    isChecking = false;
    if (waiting !== undefined && waiting !== reported) console.error(`still stopping ${waiting}`);
    reported = waiting;
  };
  const timer = setInterval(() => void check(), checkMs);
  timer.unref();
  return () => clearInterval(timer);
}
