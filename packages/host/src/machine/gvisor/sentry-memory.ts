// The memory of a running sentry, read and written from outside. This runsc has no setting for some of what decides how fast
// its sandboxes are; sentry-build.ts knows where in the memory of one build it lies.
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { identify, type ProcessIdentity } from "../process-identity.ts";

export interface SentryMemory {
  read(address: number, bytes: number): Buffer;
  write(address: number, bytes: Buffer): void;
}

/** Of that very process, or of none: false. What `use` answers otherwise; false too where it could not read or write. */
export async function withSentryMemory(
  sentry: ProcessIdentity,
  use: (memory: SentryMemory) => boolean,
): Promise<boolean> {
  let file: number;
  try {
    file = openSync(`/proc/${sentry.pid}/mem`, "r+");
  } catch {
    return false;
  }
  try {
    // What was opened is that process's memory if that process is still there.
    if ((await identify(sentry.pid))?.startTime !== sentry.startTime) return false;
    return use({
      read(address, bytes) {
        const content = Buffer.alloc(bytes);
        readSync(file, content, 0, bytes, address);
        return content;
      },
      write(address, bytes) {
        writeSync(file, bytes, 0, bytes.length, address);
      },
    });
  } catch {
    return false;
  } finally {
    closeSync(file);
  }
}
