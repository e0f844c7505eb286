import { execFileSync } from "node:child_process";

/** One or two mounts take less: a longer mount hangs, and must not keep the agent from starting. */
const timeoutMs = 10_000;

/**
 * Makes the agent's procfs soon forget ended processes, if the kernel is gVisor (native/guest/guest.c): the agent reads the entries of all
 * processes regularly. `binary`: the native program. Throws on failure.
 */
export function limitProcfs(binary: string): void {
  execFileSync(binary, ["limit-proc"], { stdio: "ignore", timeout: timeoutMs });
}
