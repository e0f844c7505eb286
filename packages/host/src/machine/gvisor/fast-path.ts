// systrap's fast path: the sentry and its programs wait for each other in a loop before they go to sleep. It serves programs
// that ask the kernel again and again, and takes the processor from all others: brief commands, a fork, a create. This runsc
// has it come on by itself, after some 3 ms of work, and looks 700 times a second whether it should (with the timer slack of
// keeper.c); it has no setting for it. So the two words that decide it are written into the sentry's memory: whether it may
// come on, and how long one look takes. When it may, is decided in fast-paths.ts.
//
// Knows builds of runsc, and leaves all others as they are: they are merely slower.
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { identify, type ProcessIdentity } from "../process-identity.ts";

/** Where the memory of one build of runsc has what; its code lies at fixed addresses. */
export interface FastPathLayout {
  /** The build's own id, as Go writes it into the program. */
  readonly build: string;
  /** A byte that forbids it while it is off (`neverEnableFastPath`). */
  readonly forbidden: number;
  /** `fastpath`, what it remembers: periods until it comes on, of both sides, and four counts of failures. */
  readonly memory: number;
  /** Whether it is on, of both sides, a cache line apart. */
  readonly on: number;
  /** Its state's function, and that of both sides off. */
  readonly state: number;
  readonly off: bigint;
  /** Nanoseconds of one look, a constant in the code of `controlFastPath`. */
  readonly period: number;
}

/** Debian's runsc 0.0~20240729.0-1~bpo12+1, amd64. */
const layouts: readonly FastPathLayout[] = [
  {
    build: "zyoTxYO_dlUpUAUTVtSw/XbCA6SyeYW0oQqpTnpBu/g1E5DfOvbURQCnPsw60i/UPAMUD9Y7p1BgsCexGgV",
    forbidden: 0x20e_4880,
    memory: 0x206_7020,
    on: 0x206_7090,
    state: 0x206_71e8,
    off: 0x139_b148n,
    period: 0xdd_b09f,
  },
];

const PERIOD_NS = 400_000;
/** It comes on two looks after it may. */
const RARER_PERIOD_NS = 5_000_000;
/** The note with the build's id lies behind the program headers. */
const HEAD_BYTES = 4_096;

/** That of a runsc; undefined: not one that is known here. */
export function fastPathOf(runsc: string): FastPathLayout | undefined {
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
  const build = head.toString("latin1", name + 4, name + 4 + head.readUInt32LE(name - 8));
  return layouts.find((layout) => layout.build === build);
}

/** Of a sentry in which nothing runs yet. False: it is not as expected, and was left as it is. */
export function tameFastPath(sentry: ProcessIdentity, layout: FastPathLayout): Promise<boolean> {
  return withMemory(sentry, (memory) => {
    const asBuilt =
      memory.read(layout.forbidden, 1)[0] === 0 &&
      memory.read(layout.state, 8).readBigUInt64LE() === layout.off &&
      memory.read(layout.period, 4).readUInt32LE() === PERIOD_NS;
    if (!asBuilt) return false;
    memory.write(layout.period, words32(RARER_PERIOD_NS));
    memory.write(layout.forbidden, Buffer.of(1));
    return true;
  });
}

/**
 * Whether it may come on, of a sentry that is tame. The sentry may just be changing what is written here: then it is on for a
 * while longer, or off. False: the sentry has ended.
 */
export function allowFastPath(
  sentry: ProcessIdentity,
  layout: FastPathLayout,
  allowed: boolean,
): Promise<boolean> {
  return withMemory(sentry, (memory) => {
    memory.write(layout.forbidden, Buffer.of(allowed ? 0 : 1));
    if (allowed) return true;
    memory.write(layout.state, words64(layout.off));
    memory.write(layout.on, Buffer.alloc(ON_BYTES));
    memory.write(layout.memory, words64(FIRST_PERIODS, FIRST_PERIODS, 0n, 0n, 0n, 0n));
    return true;
  });
}

/** Two words of four bytes, and the cache line between them, in which nothing is. */
const ON_BYTES = 4 + 64 + 4;
/** Until it comes on, as in a new sentry. */
const FIRST_PERIODS = 2n;

interface Memory {
  read(address: number, bytes: number): Buffer;
  write(address: number, bytes: Buffer): void;
}

/** Of that very process, or of none: false. */
async function withMemory(process: ProcessIdentity, use: (memory: Memory) => boolean): Promise<boolean> {
  let file: number;
  try {
    file = openSync(`/proc/${process.pid}/mem`, "r+");
  } catch {
    return false;
  }
  try {
    // What was opened is that process's memory if that process is still there.
    if ((await identify(process.pid))?.startTime !== process.startTime) return false;
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

function words32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function words64(...values: bigint[]): Buffer {
  const bytes = Buffer.alloc(values.length * 8);
  values.forEach((value, index) => bytes.writeBigUInt64LE(value, index * 8));
  return bytes;
}
