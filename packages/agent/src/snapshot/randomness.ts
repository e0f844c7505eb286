import { createHmac } from "node:crypto";
import { closeSync, openSync, readSync, writeSync } from "node:fs";

/**
 * Everything unpredictable in the agent comes from here. A memory snapshot duplicates the state of Node's own generator,
 * so two clones would draw the same values from `node:crypto`; the kernel's does not repeat (it is read on every call),
 * and what the host gave this clone at Assign is mixed in, should a runtime's kernel repeat after all.
 */
export interface Randomness {
  /** `length` bytes nobody else has. */
  bytes(length: number): Buffer;
  /** Mixes in entropy of this clone's own. */
  mix(entropy: Uint8Array): void;
}

export function kernelRandomness(devicePath = "/dev/urandom"): Randomness {
  let device = -1;
  let own: Buffer | undefined;
  let counter = 0;

  const fromKernel = (length: number): Buffer => {
    if (device < 0) device = openSync(devicePath, "r");
    const bytes = Buffer.allocUnsafe(length);
    let filled = 0;
    while (filled < length) filled += readSync(device, bytes, filled, length - filled, null);
    return bytes;
  };

  return {
    bytes(length) {
      const bytes = fromKernel(length);
      if (own === undefined) return bytes;
      for (let offset = 0; offset < length; offset += 32) {
        counter += 1;
        const mask = createHmac("sha256", own).update(String(counter)).digest();
        for (let at = offset; at < Math.min(length, offset + 32); at += 1) {
          bytes[at] = (bytes[at] ?? 0) ^ (mask[at - offset] ?? 0);
        }
      }
      return bytes;
    },
    mix(entropy) {
      own = createHmac("sha256", entropy).update(fromKernel(32)).digest();
      try {
        const pool = openSync(devicePath, "w");
        try {
          writeSync(pool, entropy);
        } finally {
          closeSync(pool);
        }
      } catch {
        // The kernel's pool is not ours to write everywhere; the mask above does not depend on it.
      }
    },
  };
}
