// systrap's patching: where a program makes a system call by `mov number, %eax; syscall`, the sentry writes a jump in its
// place, which spares a signal at every later call from there. The patch costs a page of the program's code, copied and
// mapped anew, and a table of its own in every process; this runsc does it at the first call. What calls once from each of
// its places, as a brief command does, pays and gains nothing. So a call asks for the patch once in sixteen times: what is
// called again and again is patched soon, what is called once seldom.
//
// It is one piece of the sentry's code that decides it, for which sentry-build.ts has another.
import type { SentryMemory } from "./sentry-memory.ts";

/** A piece of code in place of another of the same length. */
export interface CodeChange {
  readonly at: number;
  readonly built: Buffer;
  readonly instead: Buffer;
}

export function isAsBuilt(memory: SentryMemory, { at, built }: CodeChange): boolean {
  return memory.read(at, built.length).equals(built);
}

/** Of a sentry in which nothing runs yet: no thread may be there. */
export function makePatchingRare(memory: SentryMemory, { at, instead }: CodeChange): void {
  memory.write(at, instead);
}
