const lookMs = 500;

/** Prints what a stop waits for, whenever that changes, until the returned function is called. */
export function tellWaiting(read: () => Promise<string | undefined>): () => void {
  let told: string | undefined;
  let isLooking = false;
  const look = async (): Promise<void> => {
    if (isLooking) return;
    isLooking = true;
    const waiting = await read().catch(() => undefined);
    isLooking = false;
    if (waiting !== undefined && waiting !== told) console.error(`still stopping ${waiting}`);
    told = waiting;
  };
  const timer = setInterval(() => void look(), lookMs);
  timer.unref();
  return () => clearInterval(timer);
}
