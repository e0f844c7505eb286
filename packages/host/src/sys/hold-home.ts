/**
 * Ensures that one host at a time adopts and runs the machines of a home. Outside Kubernetes the control socket ensures it. In
 * Kubernetes two pods may overlap (a forced deletion, an update with maxSurge): the second waits here for the first.
 * Owns <home>/run/host.lock, an flock that the kernel releases when its holder dies.
 */
import { join } from "node:path";
import { withFileLock } from "@cloche/base/file-lock";

/** Resolves when this process holds the home. The returned function releases it, as the end of the process does. */
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
