import { execFileSync } from "node:child_process";

/** A mount or two: what takes longer hangs, and must not keep the agent from starting. */
const timeoutMs = 10_000;

/**
 * The agent looks at every process now and then. From here on its procfs soon forgets those that have ended, where the kernel
 * is gVisor (native/guest/guest.c). `binary`: the native program. Throws where it could not be done.
 */
export function limitProcfs(binary: string): void {
  execFileSync(binary, ["limit-proc"], { stdio: "ignore", timeout: timeoutMs });
}
