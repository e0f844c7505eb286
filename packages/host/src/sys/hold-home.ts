// One host at a time adopts and runs the machines of a home. On a machine of its own the control socket sees to it. In
// Kubernetes two pods may overlap (a forced deletion, an update with maxSurge): the second waits here for the first.
// Owns <home>/run/host.lock, an flock that the kernel releases when its holder dies.
import { join } from "node:path";
import { withFileLock } from "../artifacts/file-lock.ts";

/** Resolves when this process holds the home; answers how to let go, which the end of the process does as well. */
export async function holdHome(home: string, onWait: () => void): Promise<() => Promise<void>> {
  const held = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const body = (): Promise<void> => {
    held.resolve();
    return ended.promise;
  };
  const done = withFileLock(join(home, "run", "host.lock"), body, onWait);
  await Promise.race([held.promise, done]);
  return async () => {
    ended.resolve();
    await done;
  };
}
