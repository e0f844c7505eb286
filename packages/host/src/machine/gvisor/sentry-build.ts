// Builds of runsc whose memory is known, code and data at fixed addresses, and what is made of a sentry of such a build before
// anything runs in it: tame. All others are left as they are: they are merely slower.
import { closeSync, openSync, readSync } from "node:fs";
import type { ProcessIdentity } from "../process-identity.ts";
import { allowFastPath, type FastPathLayout, isFastPathAsBuilt, tameFastPath } from "./fast-path.ts";
import { withSentryMemory } from "./sentry-memory.ts";
import { type CodeChange, isAsBuilt, makePatchingRare } from "./syscall-patching.ts";

export interface SentryBuild {
  /** As Go writes it into the program. */
  readonly id: string;
  readonly fastPath: FastPathLayout;
  /** In `switchToApp`: whether it asks for a patch (`shouldPatchSyscall`, at 0x29 of its frame) of what made a system call. */
  readonly patching: CodeChange;
}

const code = (instructions: string): Buffer => Buffer.from(instructions.replaceAll(" ", ""), "hex");

const builds: readonly SentryBuild[] = [
  {
    // Debian's runsc 0.0~20240729.0-1~bpo12+1, amd64.
    id: "zyoTxYO_dlUpUAUTVtSw/XbCA6SyeYW0oQqpTnpBu/g1E5DfOvbURQCnPsw60i/UPAMUD9Y7p1BgsCexGgV",
    fastPath: {
      forbidden: 0x20e_4880,
      memory: 0x206_7020,
      on: 0x206_7090,
      state: 0x206_71e8,
      off: 0x139_b148n,
      period: 0xdd_b09f,
    },
    patching: {
      at: 0xde_133e,
      // nop; cmp $4,%ecx; jne 1f; movb $1,0x29(%rsp); mov $1,%ecx; 1: cmp $1,%ecx; je syscall; cmp $3,%ecx
      built: code("6690 83f904 750a c644242901 b901000000 83f901 7409 83f903"),
      // cmp $4,%ecx; jne 1f; rdtsc; test $0xf0,%al; sete 0x29(%rsp); jmp syscall; 1: cmp $1,%ecx; je syscall; cmp $3,%ecx; nop
      instead: code("83f904 750b 0f31 a8f0 0f94442429 eb0f 83f901 740a 83f903 90"),
    },
  },
];

/** The note with the build's id lies behind the program headers. */
const HEAD_BYTES = 4_096;

/** That of a runsc; undefined: not one that is known here. */
export function sentryBuildOf(runsc: string): SentryBuild | undefined {
  const head = Buffer.alloc(HEAD_BYTES);
  const file = openSync(runsc, "r");
  try {
    readSync(file, head, 0, HEAD_BYTES, 0);
  } finally {
    closeSync(file);
  }
  // An ELF note: lengths of name and content, kind, name, content.
  const name = head.indexOf("Go\0\0");
  if (name < 12) return undefined;
  const id = head.toString("latin1", name + 4, name + 4 + head.readUInt32LE(name - 8));
  return builds.find((build) => build.id === id);
}

/** Of a sentry in which nothing runs yet. False: it is not as expected, and was left as it is. */
export function tame(sentry: ProcessIdentity, { fastPath, patching }: SentryBuild): Promise<boolean> {
  return withSentryMemory(sentry, (memory) => {
    if (!isFastPathAsBuilt(memory, fastPath) || !isAsBuilt(memory, patching)) return false;
    makePatchingRare(memory, patching);
    tameFastPath(memory, fastPath);
    return true;
  });
}

/** Whether a tame sentry may have systrap's fast path. False: it has ended. */
export function letHaveFastPath(
  sentry: ProcessIdentity,
  { fastPath }: SentryBuild,
  allowed: boolean,
): Promise<boolean> {
  return withSentryMemory(sentry, (memory) => {
    allowFastPath(memory, fastPath, allowed);
    return true;
  });
}
